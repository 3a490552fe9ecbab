package kubernetes

import (
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
	"github.com/sandgate/sandgate/streaming/sealed"
)

// Where things are in a sandbox.
const (
	containerName = "sandbox"
	installerName = "sandgate-agent"
	agentVolume   = "sandgate-agent"
	diskVolume    = "sandgate-disk"
	agentDir      = "/sandgate"
	agentPath     = agentDir + "/sandgate-agent"
	stateDir      = "/run/sandgate"
	homeDir       = "/home/sandbox"
	hostname      = "sandbox"

	// imageAgent is where an agent image holds the agent.
	imageAgent = "/sandgate-agent"

	// incarnationVariable carries the pod's UID into the agent's arguments.
	incarnationVariable = "SANDGATE_INCARNATION"
)

const (
	agentVolumeSize = 128 << 20
	// stopSeconds is how long the agent has to end by itself. It needs far less.
	stopSeconds = 5
)

// places are the writable directories and their names on the disk.
var places = []struct{ name, at string }{
	{"workspace", "/workspace"},
	{"home", homeDir},
	{"tool-results", "/large_tool_results"},
	{"history", "/conversation_history"},
	{"tmp", "/tmp"},
	{"var-tmp", "/var/tmp"},
	{"run", "/run"},
	{"state", stateDir},
}

// plan is everything that decides what a sandbox's pod looks like.
type plan struct {
	config  *Config
	spec    providers.Spec
	options options
	// pod is the pod's name.
	pod string
	// secret holds the environment's values, in the order of envKeys, and the
	// agent's secret. Empty: there is none of both.
	secret string
	// agentSecret is for an agent that listens.
	agentSecret sealed.Secret
	// ownAccount is the server's service account, if it is one of the namespace
	// of the sandboxes.
	ownAccount string
}

// makePod makes the pod, before overrides, without labels and owner.
func (p *plan) makePod() *corev1.Pod {
	o := &p.options
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.pod, Labels: maps.Clone(o.Labels), Annotations: maps.Clone(o.Annotations)},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			Hostname:                      hostname,
			EnableServiceLinks:            new(bool),
			AutomountServiceAccountToken:  new(o.MountServiceAccountToken),
			ServiceAccountName:            o.ServiceAccount,
			TerminationGracePeriodSeconds: new(int64(stopSeconds)),
			NodeSelector:                  o.NodeSelector,
			Tolerations:                   o.Tolerations,
			Affinity:                      o.Affinity,
			PriorityClassName:             o.PriorityClassName,
			SecurityContext:               p.podSecurity(),
			InitContainers:                append([]corev1.Container{p.installer()}, o.InitContainers...),
			Containers:                    []corev1.Container{p.container()},
			Volumes:                       append(p.ownVolumes(), o.Volumes...),
		},
	}
	if o.RuntimeClassName != "" {
		pod.Spec.RuntimeClassName = &o.RuntimeClassName
	}
	for _, name := range o.ImagePullSecrets {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	if p.spec.Network != providers.NetworkFull {
		// Without network nobody answers here, so that names are not looked up in vain
		// until a timeout. With the mode PROXY the agent does.
		pod.Spec.DNSPolicy = corev1.DNSNone
		pod.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"127.0.0.1"}}
	}
	// The template's init containers get the floor and the limits without having
	// to state them.
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.SecurityContext == nil {
			c.SecurityContext = p.security()
		}
		if c.Resources.Limits == nil {
			c.Resources = p.resources()
		}
	}
	return pod
}

func (p *plan) image() string {
	if p.spec.Image != "" {
		return p.spec.Image
	}
	return p.config.Image
}

func (p *plan) container() corev1.Container {
	return corev1.Container{
		Name:                     containerName,
		Image:                    p.image(),
		ImagePullPolicy:          p.options.ImagePullPolicy,
		Command:                  p.serve(),
		WorkingDir:               "/",
		Env:                      p.environment(),
		Ports:                    p.listenPort(),
		Resources:                p.resources(),
		VolumeMounts:             p.mounts(),
		SecurityContext:          p.security(),
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
}

func (p *plan) serve() []string {
	args := []string{
		agentPath, "serve", "--incarnation", "$(" + incarnationVariable + ")",
		"--workdir", escaped(p.workdir()), "--state-dir", stateDir,
	}
	if p.listens() {
		args = append(args, "--listen-tcp", kube.ListenAddress(p.config.AgentPort))
	}
	if p.spec.Network == providers.NetworkProxy {
		args = append(args, "--egress")
	}
	if len(p.spec.Command) > 0 {
		args = append(args, "--")
		for _, arg := range p.spec.Command {
			args = append(args, escaped(arg))
		}
	}
	return args
}

func (p *plan) workdir() string {
	if p.spec.WorkingDirectory == "" {
		return "/workspace"
	}
	return path.Clean(p.spec.WorkingDirectory)
}

// connectCommand joins an exec's standard input and output to the agent.
func connectCommand() []string { return []string{agentPath, "connect"} }

// waitScript waits for the provider to write the agent.
const waitScript = `until [ -x ` + agentPath + ` ]; do sleep 0.05 2>/dev/null || sleep 1; done`

// installer is the init container that brings the agent.
func (p *plan) installer() corev1.Container {
	c := corev1.Container{
		Name: installerName, Resources: p.resources(), SecurityContext: p.security(),
		VolumeMounts: []corev1.VolumeMount{{Name: agentVolume, MountPath: agentDir}},
	}
	if p.config.AgentImage != "" {
		c.Image, c.Command = p.config.AgentImage, []string{imageAgent, "install", agentDir}
		return c
	}
	c.Image, c.ImagePullPolicy, c.Command = p.image(), p.options.ImagePullPolicy, []string{"sh", "-c", waitScript}
	return c
}

// envKeys are the names of the environment in the order of their values.
func envKeys(env map[string]string) []string { return slices.Sorted(maps.Keys(env)) }

func envValueKey(i int) string { return "v" + strconv.Itoa(i) }

func (p *plan) environment() []corev1.EnvVar {
	out := []corev1.EnvVar{{Name: incarnationVariable, ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.uid"},
	}}}
	out = append(out, p.secretEnv()...)
	if _, ok := p.spec.Env["HOME"]; !ok {
		out = append(out, corev1.EnvVar{Name: "HOME", Value: homeDir})
	}
	for i, k := range envKeys(p.spec.Env) {
		out = append(out, corev1.EnvVar{Name: k, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: p.secret}, Key: envValueKey(i),
		}}})
	}
	return out
}

// What a sandbox asks of its node beforehand, unless its template says more:
// sandboxes idle most of the time.
const (
	defaultCPURequest    = 100
	defaultMemoryRequest = 256 << 20
)

func (p *plan) resources() corev1.ResourceRequirements {
	r, o := p.spec.Resources, &p.options
	limits, requests := corev1.ResourceList{}, corev1.ResourceList{}
	set := func(name corev1.ResourceName, limit *resource.Quantity, request *resource.Quantity, byDefault resource.Quantity) {
		if limit != nil {
			limits[name] = *limit
		}
		switch {
		case request != nil:
			requests[name] = *request
		case limit != nil && limit.Cmp(byDefault) < 0:
			requests[name] = *limit
		default:
			requests[name] = byDefault
		}
	}
	var cpu, memory, disk *resource.Quantity
	if r.CPUMillis > 0 {
		cpu = resource.NewMilliQuantity(int64(r.CPUMillis), resource.DecimalSI)
	}
	if r.MemoryBytes > 0 {
		memory = resource.NewQuantity(r.MemoryBytes, resource.BinarySI)
	}
	if r.DiskBytes > 0 {
		disk = resource.NewQuantity(r.DiskBytes+agentVolumeSize, resource.BinarySI)
	}
	set(corev1.ResourceCPU, cpu, o.CPURequest, *resource.NewMilliQuantity(defaultCPURequest, resource.DecimalSI))
	set(corev1.ResourceMemory, memory, o.MemoryRequest, *resource.NewQuantity(defaultMemoryRequest, resource.BinarySI))
	set(corev1.ResourceEphemeralStorage, disk, o.EphemeralStorageRequest, *resource.NewQuantity(0, resource.BinarySI))
	return corev1.ResourceRequirements{Limits: limits, Requests: requests}
}

func (p *plan) podSecurity() *corev1.PodSecurityContext {
	o := &p.options
	s := &corev1.PodSecurityContext{
		RunAsNonRoot: new(true), RunAsUser: &o.RunAsUser, RunAsGroup: &o.RunAsGroup,
		FSGroup: o.FSGroup, SupplementalGroups: o.SupplementalGroups, SeccompProfile: p.seccomp(),
	}
	if len(o.ClaimTemplates) > 0 && o.FSGroup == nil {
		// A new volume belongs to root.
		s.FSGroup = &o.RunAsGroup
	}
	if p.spec.Network == providers.NetworkProxy {
		// The agent, which is not root, listens on ports below 1024. Kubelets and the
		// "restricted" standard allow this one to every pod.
		s.Sysctls = []corev1.Sysctl{{Name: "net.ipv4.ip_unprivileged_port_start", Value: "0"}}
	}
	return s
}

func (p *plan) security() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		RunAsNonRoot: new(true), RunAsUser: &p.options.RunAsUser, RunAsGroup: &p.options.RunAsGroup,
		AllowPrivilegeEscalation: new(bool), Privileged: new(bool), ReadOnlyRootFilesystem: new(!p.options.WritableRoot),
		Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile: p.seccomp(),
	}
}

func (p *plan) seccomp() *corev1.SeccompProfile {
	if local, ok := strings.CutPrefix(p.options.SeccompProfile, seccompLocalPrefix); ok {
		return &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &local}
	}
	return &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
}
