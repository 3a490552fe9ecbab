package kubernetes

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/strictjson"
)

// options is the provider's part of a template. A request's provider_options
// are the same fields, as far as the template allows each.
type options struct {
	ImagePullPolicy  corev1.PullPolicy `json:"image_pull_policy"`
	ImagePullSecrets []string          `json:"image_pull_secrets"`

	CPURequest              *resource.Quantity `json:"cpu_request"`
	MemoryRequest           *resource.Quantity `json:"memory_request"`
	EphemeralStorageRequest *resource.Quantity `json:"ephemeral_storage_request"`

	RunAsUser          int64   `json:"run_as_user"`
	RunAsGroup         int64   `json:"run_as_group"`
	FSGroup            *int64  `json:"fs_group"`
	SupplementalGroups []int64 `json:"supplemental_groups"`
	// SeccompProfile is "RuntimeDefault" or "Localhost/PATH".
	SeccompProfile string `json:"seccomp_profile"`
	// WritableRoot leaves the image's files writable for its user.
	WritableRoot bool `json:"writable_root"`
	// WritablePaths are writable directories beside the usual ones.
	WritablePaths []string `json:"writable_paths"`
	// DiskMedium "Memory" keeps the writable directories in memory, where their
	// size is a hard limit and counts as the sandbox's memory.
	DiskMedium corev1.StorageMedium `json:"disk_medium"`

	NodeSelector      map[string]string   `json:"node_selector"`
	Tolerations       []corev1.Toleration `json:"tolerations"`
	Affinity          *corev1.Affinity    `json:"affinity"`
	RuntimeClassName  string              `json:"runtime_class_name"`
	PriorityClassName string              `json:"priority_class_name"`

	ServiceAccount           string `json:"service_account"`
	MountServiceAccountToken bool   `json:"mount_service_account_token"`

	// Secrets are the Secrets of the namespace that volumes and containers may
	// use.
	Secrets        []string             `json:"secrets"`
	Volumes        []corev1.Volume      `json:"volumes"`
	VolumeMounts   []corev1.VolumeMount `json:"volume_mounts"`
	ClaimTemplates []claimTemplate      `json:"claim_templates"`
	InitContainers []corev1.Container   `json:"init_containers"`

	// PodOverrides are merged into the pod's spec by the rules of "kubectl
	// patch"; the container is named "sandbox".
	PodOverrides json.RawMessage   `json:"pod_overrides"`
	Labels       map[string]string `json:"labels"`
	Annotations  map[string]string `json:"annotations"`

	// SetupScript is run by /bin/sh before the sandbox is given to anybody.
	SetupScript string `json:"setup_script"`

	NamespacePerSandbox bool `json:"namespace_per_sandbox"`
	// NamespaceQuota is the ResourceQuota of a sandbox's own namespace.
	NamespaceQuota corev1.ResourceList `json:"namespace_quota"`
	// NamespaceLimits is the LimitRange of a sandbox's own namespace.
	NamespaceLimits []corev1.LimitRangeItem `json:"namespace_limits"`

	// Root is an option of the local provider. Create rejects it here.
	Root bool `json:"root"`

	StartTimeoutSeconds    int32 `json:"start_timeout_seconds"`
	ScheduleTimeoutSeconds int32 `json:"schedule_timeout_seconds"`
}

// claimTemplate asks for a volume of the sandbox's own.
type claimTemplate struct {
	Name         string                              `json:"name"`
	MountPath    string                              `json:"mount_path"`
	Storage      resource.Quantity                   `json:"storage"`
	StorageClass *string                             `json:"storage_class"`
	AccessModes  []corev1.PersistentVolumeAccessMode `json:"access_modes"`
	// Retain keeps the volume when the sandbox is deleted. A sandbox that is
	// created later under the same id gets it again.
	Retain bool `json:"retain"`
}

const (
	defaultUser        = 1000
	defaultStart       = 2 * time.Minute
	seccompDefault     = "RuntimeDefault"
	seccompLocalPrefix = "Localhost/"
)

var _ providers.OptionsChecker = (*Provider)(nil)

// operatorOptions are options that no template can leave to requests: they
// choose Secrets, accounts, volumes and containers, which are the operator's.
var operatorOptions = []string{"init_containers", "pod_overrides", "secrets", "service_account", "volumes"}

// CheckOptions implements providers.OptionsChecker.
func (p *Provider) CheckOptions(raw json.RawMessage, allowed []string) error {
	o := defaultOptions()
	if err := strictjson.CheckNames(allowed, &o); err != nil {
		return fmt.Errorf("allow_options: %w: %w", err, providers.ErrInvalid)
	}
	for _, name := range allowed {
		if slices.Contains(operatorOptions, name) {
			return fmt.Errorf("allow_options: %s: only the template may set it, never a request: %w", name, providers.ErrInvalid)
		}
	}
	err := strictjson.Decode(raw, &o)
	if err == nil {
		err = o.checkValues()
	}
	if err == nil && len(allowed) == 0 {
		err = o.checkTogether()
	}
	if err == nil {
		err = p.checkPlan(o, allowed)
	}
	if err != nil {
		return fmt.Errorf("provider_options: %w: %w", err, providers.ErrInvalid)
	}
	return nil
}

// checkPlan checks the pod that a template makes, with as much freedom as a
// request can still add.
func (p *Provider) checkPlan(o options, allowed []string) error {
	o.WritableRoot = o.WritableRoot || slices.Contains(allowed, "writable_root")
	o.MountServiceAccountToken = o.MountServiceAccountToken || slices.Contains(allowed, "mount_service_account_token")
	pl := &plan{
		config: &p.config, spec: providers.Spec{Resources: DefaultResources()}, options: o,
		pod: "x", secret: newSecretName("x"), ownAccount: p.account,
	}
	pod := pl.makePod()
	if err := merge(pod, o.PodOverrides); err != nil {
		return fmt.Errorf("pod_overrides: %w", err)
	}
	return pl.checkFloor(pod)
}

func defaultOptions() options {
	return options{RunAsUser: defaultUser, RunAsGroup: defaultUser, SeccompProfile: seccompDefault}
}

func decodeOptions(spec providers.Spec) (options, error) {
	o := defaultOptions()
	if err := strictjson.Decode(spec.TemplateOptions, &o); err != nil {
		return o, fmt.Errorf("template options of the kubernetes provider: %w: %w", err, providers.ErrInvalid)
	}
	if err := strictjson.Decode(spec.Options, &o); err != nil {
		return o, fmt.Errorf("provider options of the kubernetes provider: %w: %w", err, providers.ErrInvalid)
	}
	if o.Root {
		return o, fmt.Errorf("option root: %w by the kubernetes provider; use the local provider with runc", providers.ErrUnsupported)
	}
	if err := o.check(); err != nil {
		return o, fmt.Errorf("options of the kubernetes provider: %w: %w", err, providers.ErrInvalid)
	}
	return o, nil
}

func (o *options) check() error {
	if err := o.checkValues(); err != nil {
		return err
	}
	return o.checkTogether()
}

// checkValues looks at each option for itself.
func (o *options) checkValues() error {
	switch o.ImagePullPolicy {
	case "", corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		return fmt.Errorf("image_pull_policy: %q is none of Always, IfNotPresent, Never", o.ImagePullPolicy)
	}
	if local, ok := strings.CutPrefix(o.SeccompProfile, seccompLocalPrefix); o.SeccompProfile != seccompDefault && (!ok || local == "") {
		return fmt.Errorf("seccomp_profile: %q is neither %s nor %sPATH", o.SeccompProfile, seccompDefault, seccompLocalPrefix)
	}
	if o.DiskMedium != corev1.StorageMediumDefault && o.DiskMedium != corev1.StorageMediumMemory {
		return fmt.Errorf("disk_medium: %q is neither empty nor Memory", o.DiskMedium)
	}
	if o.RunAsUser <= 0 || o.RunAsGroup <= 0 {
		return errors.New("run_as_user and run_as_group: must be above 0")
	}
	if o.FSGroup != nil && *o.FSGroup <= 0 || slices.ContainsFunc(o.SupplementalGroups, func(id int64) bool { return id <= 0 }) {
		return errors.New("fs_group and supplemental_groups: must be above 0")
	}
	for _, p := range o.WritablePaths {
		if !path.IsAbs(p) || path.Clean(p) == "/" {
			return fmt.Errorf("writable_paths: %q is not an absolute path below the root", p)
		}
	}
	for key := range o.Labels {
		if err := foreignKey(key); err != nil {
			return fmt.Errorf("labels: %w", err)
		}
	}
	for key := range o.Annotations {
		if err := foreignKey(key); err != nil {
			return fmt.Errorf("annotations: %w", err)
		}
	}
	if o.StartTimeoutSeconds < 0 || o.ScheduleTimeoutSeconds < 0 {
		return errors.New("start_timeout_seconds and schedule_timeout_seconds: must not be negative")
	}
	return o.checkClaims()
}

// checkTogether looks at options that need or exclude each other.
func (o *options) checkTogether() error {
	switch {
	case !o.NamespacePerSandbox && (o.NamespaceQuota != nil || o.NamespaceLimits != nil):
		return errors.New("namespace_quota and namespace_limits: need namespace_per_sandbox")
	case o.NamespacePerSandbox && o.retains():
		return errors.New("claim_templates: retain: what goes with the sandbox's namespace cannot be retained")
	}
	return nil
}

func (o *options) checkClaims() error {
	seen := map[string]bool{}
	for _, c := range o.ClaimTemplates {
		switch {
		case len(validation.IsDNS1123Label(c.Name)) > 0 || seen[c.Name] || c.Name == agentVolume || c.Name == diskVolume:
			return fmt.Errorf("claim_templates: the name %q is no DNS label, or is taken", c.Name)
		case !path.IsAbs(c.MountPath):
			return fmt.Errorf("claim_templates: %s: mount_path %q is not absolute", c.Name, c.MountPath)
		case c.Storage.Sign() <= 0:
			return fmt.Errorf("claim_templates: %s: storage must be above 0", c.Name)
		}
		seen[c.Name] = true
	}
	return nil
}

func (o *options) retains() bool {
	for _, c := range o.ClaimTemplates {
		if c.Retain {
			return true
		}
	}
	return false
}

func (o *options) startTimeout() time.Duration {
	if o.StartTimeoutSeconds == 0 {
		return defaultStart
	}
	return time.Duration(o.StartTimeoutSeconds) * time.Second
}

// foreignKey keeps templates away from the provider's own labels.
func foreignKey(key string) error {
	if errs := validation.IsQualifiedName(key); len(errs) > 0 {
		return fmt.Errorf("%q: %s", key, strings.Join(errs, "; "))
	}
	if prefix, _, ok := strings.Cut(key, "/"); ok && (prefix == domain || strings.HasSuffix(prefix, "."+domain)) {
		return fmt.Errorf("%q: the prefix %s is the provider's own", key, domain)
	}
	return nil
}
