package kubernetes

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/strictjson"
)

// finish merges the template's overrides into the pod and holds the result to
// the floor, which no template can lower.
func (p *plan) finish(pod *corev1.Pod) error {
	if err := merge(pod, p.options.PodOverrides); err != nil {
		return fmt.Errorf("pod_overrides: %w: %w", err, providers.ErrInvalid)
	}
	if err := p.checkFloor(&pod.Spec); err != nil {
		return fmt.Errorf("template %q: %w: %w", p.spec.Template, err, providers.ErrForbidden)
	}
	return nil
}

func merge(pod *corev1.Pod, overrides json.RawMessage) error {
	if len(overrides) == 0 || string(overrides) == "null" {
		return nil
	}
	if err := strictPatch(overrides); err != nil {
		return err
	}
	base, err := json.Marshal(pod.Spec)
	if err != nil {
		return err
	}
	merged, err := strategicpatch.StrategicMergePatch(base, overrides, corev1.PodSpec{})
	if err != nil {
		return err
	}
	var spec corev1.PodSpec
	if err := json.Unmarshal(merged, &spec); err != nil {
		return err
	}
	pod.Spec = spec
	return nil
}

// strictPatch refuses fields that no pod has. The patch's own directives, which
// begin with a dollar, are left aside.
func strictPatch(overrides json.RawMessage) error {
	var tree any
	if err := json.Unmarshal(overrides, &tree); err != nil {
		return err
	}
	plain, err := json.Marshal(withoutDirectives(tree))
	if err != nil {
		return err
	}
	return strictjson.Decode(plain, &corev1.PodSpec{})
}

func withoutDirectives(tree any) any {
	switch t := tree.(type) {
	case map[string]any:
		out := make(map[string]any, len(t))
		for k, v := range t {
			if len(k) == 0 || k[0] != '$' {
				out[k] = withoutDirectives(v)
			}
		}
		return out
	case []any:
		out := make([]any, len(t))
		for i, v := range t {
			out[i] = withoutDirectives(v)
		}
		return out
	default:
		return tree
	}
}

// checkFloor returns what of a pod is below the floor.
func (p *plan) checkFloor(s *corev1.PodSpec) error {
	token := s.AutomountServiceAccountToken
	switch {
	case s.HostNetwork || s.HostPID || s.HostIPC:
		return fmt.Errorf("hostNetwork, hostPID and hostIPC: must be false")
	case s.ShareProcessNamespace != nil && *s.ShareProcessNamespace:
		return fmt.Errorf("shareProcessNamespace: must be false")
	case s.RestartPolicy != corev1.RestartPolicyNever:
		return fmt.Errorf("restartPolicy: must be Never, because a sandbox that lost its processes is another one")
	case (token == nil || *token) && !p.options.MountServiceAccountToken:
		return fmt.Errorf("automountServiceAccountToken: must be false, unless mount_service_account_token is set")
	case s.SecurityContext == nil || s.SecurityContext.Sysctls != nil || s.SecurityContext.WindowsOptions != nil:
		return fmt.Errorf("securityContext: must be there, without sysctls and windowsOptions")
	}
	for _, v := range s.Volumes {
		if err := p.checkVolume(v); err != nil {
			return fmt.Errorf("volume %s: %w", v.Name, err)
		}
	}
	for _, c := range slices.Concat(s.InitContainers, s.Containers) {
		if err := p.checkContainer(s.SecurityContext, &c); err != nil {
			return fmt.Errorf("container %s: %w", c.Name, err)
		}
	}
	if len(s.InitContainers) == 0 || s.InitContainers[0].Name != installerName {
		return fmt.Errorf("initContainers: the first must be %s", installerName)
	}
	i := slices.IndexFunc(s.Containers, func(c corev1.Container) bool { return c.Name == containerName })
	if i < 0 {
		return fmt.Errorf("containers: must have %s", containerName)
	}
	return p.checkSandbox(&s.Containers[i])
}

func (p *plan) checkVolume(v corev1.Volume) error {
	if v.HostPath != nil {
		return fmt.Errorf("hostPath: must not be used")
	}
	if v.Projected != nil && !p.options.MountServiceAccountToken {
		for _, source := range v.Projected.Sources {
			if source.ServiceAccountToken != nil {
				return fmt.Errorf("a service account's token: needs mount_service_account_token")
			}
		}
	}
	return nil
}

func (p *plan) checkContainer(pod *corev1.PodSecurityContext, c *corev1.Container) error {
	s := c.SecurityContext
	if s == nil {
		return fmt.Errorf("securityContext: must be there")
	}
	nonRoot, user, group, seccomp := pod.RunAsNonRoot, pod.RunAsUser, pod.RunAsGroup, pod.SeccompProfile
	if s.RunAsNonRoot != nil {
		nonRoot = s.RunAsNonRoot
	}
	if s.RunAsUser != nil {
		user = s.RunAsUser
	}
	if s.RunAsGroup != nil {
		group = s.RunAsGroup
	}
	if s.SeccompProfile != nil {
		seccomp = s.SeccompProfile
	}
	switch {
	case nonRoot == nil || !*nonRoot || user == nil || *user == 0 || group == nil || *group == 0:
		return fmt.Errorf("runAsNonRoot, runAsUser and runAsGroup: must be true and above 0")
	case s.Privileged != nil && *s.Privileged:
		return fmt.Errorf("privileged: must be false")
	case s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation:
		return fmt.Errorf("allowPrivilegeEscalation: must be false")
	case s.Capabilities == nil || !slices.Contains(s.Capabilities.Drop, "ALL") || len(s.Capabilities.Add) > 0:
		return fmt.Errorf("capabilities: must drop ALL and add none")
	case seccomp == nil || seccomp.Type == corev1.SeccompProfileTypeUnconfined:
		return fmt.Errorf("seccompProfile: must be RuntimeDefault or Localhost")
	case s.ProcMount != nil && *s.ProcMount != corev1.DefaultProcMount:
		return fmt.Errorf("procMount: must be Default")
	case s.WindowsOptions != nil:
		return fmt.Errorf("windowsOptions: must not be there")
	case len(c.VolumeDevices) > 0:
		return fmt.Errorf("volumeDevices: must not be there")
	}
	for _, port := range c.Ports {
		if port.HostPort != 0 {
			return fmt.Errorf("ports: hostPort must not be used")
		}
	}
	return nil
}

// checkSandbox looks at what makes the container a sandbox.
func (p *plan) checkSandbox(c *corev1.Container) error {
	want := p.container()
	if !slices.Equal(c.Command, want.Command) || len(c.Args) > 0 {
		return fmt.Errorf("container %s: command and args: are the agent's; the sandbox's own command is the template's", c.Name)
	}
	if c.RestartPolicy != nil || len(c.RestartPolicyRules) > 0 || c.Lifecycle != nil && c.Lifecycle.PostStart != nil {
		return fmt.Errorf("container %s: restartPolicy and postStart: must not be there", c.Name)
	}
	if readOnly := c.SecurityContext.ReadOnlyRootFilesystem; !p.options.WritableRoot && (readOnly == nil || !*readOnly) {
		return fmt.Errorf("container %s: readOnlyRootFilesystem: must be true, unless writable_root is set", c.Name)
	}
	if err := p.checkListening(c); err != nil {
		return err
	}
	for name := range want.Resources.Limits {
		if _, ok := c.Resources.Limits[name]; !ok {
			return fmt.Errorf("container %s: resources: the limit on %s must stay", c.Name, name)
		}
	}
	agent := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == agentDir })
	if agent < 0 || c.VolumeMounts[agent].Name != agentVolume || !c.VolumeMounts[agent].ReadOnly {
		return fmt.Errorf("container %s: volumeMounts: %s must stay as it is", c.Name, agentDir)
	}
	return nil
}
