package agentsandbox

import (
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/pattern"
	"github.com/sandgate/sandgate/providers/internal/strictjson"
)

// options is the provider's part of a template. A request's provider_options
// are the same fields but for those that only an operator may set.
type options struct {
	// Pool is a SandboxWarmPool of the operator's, SandboxTemplate one that the
	// provider makes a pool for. One of them is required, unless what exists is
	// wrapped.
	Pool            string `json:"pool"`
	SandboxTemplate string `json:"sandbox_template"`
	// Container is where the agent runs. Default: the pod's first.
	Container string `json:"container"`
	// PodLabels and PodAnnotations are put on the pod, as far as the controller
	// lets them.
	PodLabels      map[string]string `json:"pod_labels"`
	PodAnnotations map[string]string `json:"pod_annotations"`
	// VolumeClaimTemplates make volumes of the sandbox's own. The template must
	// allow and mount them.
	VolumeClaimTemplates []claimTemplate `json:"volume_claim_templates"`
	// TTLAfterFinished is how many seconds a sandbox is kept after its pod ended
	// by itself. Unset: until somebody deletes it.
	TTLAfterFinished *int32 `json:"ttl_seconds_after_finished"`

	// ExistingClaim and ExistingSandbox name a SandboxClaim or Sandbox that was
	// made by somebody else and is to be wrapped.
	ExistingClaim   string `json:"existing_claim"`
	ExistingSandbox string `json:"existing_sandbox"`
	// DeleteExisting deletes the adopted object with the sandbox.
	DeleteExisting bool `json:"delete_existing"`

	// Root is an option of the local provider. Create rejects it here.
	Root bool `json:"root"`
}

// templateOptions are options, and what only an operator may say.
type templateOptions struct {
	options
	// Claims and Sandboxes are the names that may be adopted, exactly or with the
	// wildcards of path.Match.
	Claims    []string `json:"existing_claims"`
	Sandboxes []string `json:"existing_sandboxes"`
	// EgressDenied states that something which the provider cannot read, such as a
	// policy of the network plugin's own, denies the pods all egress.
	EgressDenied bool `json:"egress_denied"`
	// NoRedirect leaves connects of programs alone that ignore the proxy.
	NoRedirect bool `json:"no_redirect"`
}

// operatorOptions returns the template's options, and none if they are malformed.
func operatorOptions(spec providers.Spec) templateOptions {
	var t templateOptions
	if strictjson.Decode(spec.TemplateOptions, &t) != nil {
		return templateOptions{}
	}
	return t
}

// claimTemplate asks for a volume of the sandbox's own.
type claimTemplate struct {
	Name         string                              `json:"name"`
	Storage      resource.Quantity                   `json:"storage"`
	StorageClass *string                             `json:"storage_class"`
	AccessModes  []corev1.PersistentVolumeAccessMode `json:"access_modes"`
}

func (t claimTemplate) volume() volumeClaimSpec {
	modes := t.AccessModes
	if len(modes) == 0 {
		modes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	return volumeClaimSpec{
		Metadata: volumeClaimName{Name: t.Name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, StorageClassName: t.StorageClass,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: t.Storage}},
		},
	}
}

// adopts reports whether the sandbox exists already.
func (o options) adopts() bool { return o.ExistingClaim != "" || o.ExistingSandbox != "" }

var _ providers.OptionsChecker = (*Provider)(nil)

// CheckOptions implements providers.OptionsChecker.
func (*Provider) CheckOptions(raw json.RawMessage, allowed []string) error {
	var t templateOptions
	if err := strictjson.Decode(raw, &t); err != nil {
		return fmt.Errorf("provider_options: %w: %w", err, providers.ErrInvalid)
	}
	if err := pattern.Check(slices.Concat(t.Claims, t.Sandboxes)); err != nil {
		return fmt.Errorf("provider_options: existing_claims and existing_sandboxes: %w", err)
	}
	err := t.checkVolumes()
	if err == nil && len(raw) > 0 && len(allowed) == 0 {
		err = t.checkSource()
	}
	if err != nil {
		return fmt.Errorf("provider_options: %w", err)
	}
	if err := strictjson.CheckNames(allowed, &t.options); err != nil {
		return fmt.Errorf("allow_options: %w: %w", err, providers.ErrInvalid)
	}
	return nil
}

// decodeOptions reads the template's options and the request's over them. Which
// of its fields a request may set at all the server has checked.
func decodeOptions(spec providers.Spec) (options, error) {
	var t templateOptions
	if err := strictjson.Decode(spec.TemplateOptions, &t); err != nil {
		return options{}, fmt.Errorf("template options of the agentsandbox provider: %w: %w", err, providers.ErrInvalid)
	}
	var asked options
	if err := strictjson.Decode(spec.Options, &asked); err != nil {
		return options{}, fmt.Errorf("provider options of the agentsandbox provider: %w: %w", err, providers.ErrInvalid)
	}
	o := t.options
	if asked.Pool != "" || asked.SandboxTemplate != "" {
		o.Pool, o.SandboxTemplate = "", ""
	}
	if err := strictjson.Decode(spec.Options, &o); err != nil {
		return options{}, err // it was decoded once
	}
	if o.Root {
		return options{}, fmt.Errorf("option root: %w by the agentsandbox provider; use the local provider with runc", providers.ErrUnsupported)
	}
	if err := t.allowsExisting(o, spec.Template); err != nil {
		return options{}, err
	}
	if err := o.check(); err != nil {
		return o, fmt.Errorf("template %q: %w", spec.Template, err)
	}
	return o, checkPortable(spec)
}

// allowsExisting keeps requests to the names that the operator lists. A name
// that the template itself says needs no list.
func (t templateOptions) allowsExisting(o options, template string) error {
	for _, c := range []struct {
		kind, name, own string
		allowed         []string
	}{
		{"SandboxClaim", o.ExistingClaim, t.ExistingClaim, t.Claims},
		{"Sandbox", o.ExistingSandbox, t.ExistingSandbox, t.Sandboxes},
	} {
		if c.name != "" && c.name != c.own && !matches(c.allowed, c.name) {
			return fmt.Errorf("%s %q is not among those that template %q allows to adopt: %w", c.kind, c.name, template, providers.ErrForbidden)
		}
	}
	return nil
}

func matches(patterns []string, name string) bool {
	for _, p := range patterns {
		if ok, err := path.Match(p, name); err == nil && ok {
			return true
		}
	}
	return false
}

func (o options) check() error {
	if err := o.checkSource(); err != nil || o.adopts() {
		return err
	}
	return o.checkVolumes()
}

// checkSource makes sure that there is one thing to start from.
func (o options) checkSource() error {
	sources := 0
	for _, s := range []string{o.ExistingClaim, o.ExistingSandbox} {
		if s != "" {
			sources++
		}
	}
	switch {
	case sources > 1:
		return fmt.Errorf("existing_claim and existing_sandbox exclude each other: %w", providers.ErrInvalid)
	case sources == 1:
		return nil
	case o.Pool != "" && o.SandboxTemplate != "":
		return fmt.Errorf("pool and sandbox_template exclude each other: %w", providers.ErrInvalid)
	case o.Pool == "" && o.SandboxTemplate == "":
		return fmt.Errorf("neither a pool nor a sandbox_template is named: %w", providers.ErrInvalid)
	}
	return nil
}

func (o options) checkVolumes() error {
	for _, v := range o.VolumeClaimTemplates {
		if v.Name == "" || v.Storage.Sign() <= 0 {
			return fmt.Errorf("volume_claim_templates: a name and a positive storage are required: %w", providers.ErrInvalid)
		}
	}
	return nil
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// checkPortable refuses what only the SandboxTemplate can say.
func checkPortable(spec providers.Spec) error {
	switch {
	case spec.Image != "":
		return fmt.Errorf("image: the SandboxTemplate of template %q defines it: %w", spec.Template, providers.ErrUnsupported)
	case len(spec.Command) > 0:
		return fmt.Errorf("command: the SandboxTemplate of template %q defines it: %w", spec.Template, providers.ErrUnsupported)
	case spec.WorkingDirectory != "" && !path.IsAbs(spec.WorkingDirectory):
		return fmt.Errorf("working directory %q is not absolute: %w", spec.WorkingDirectory, providers.ErrInvalid)
	}
	for k := range spec.Env {
		if !envName.MatchString(k) {
			return fmt.Errorf("env: %q is not a variable's name: %w", k, providers.ErrInvalid)
		}
	}
	return nil
}
