package kubernetes

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sandgate/sandgate/providers/internal/kube"
)

// checkFloor returns an error if a pod is below the floor: the "restricted" Pod
// Security Standard, and what that leaves open and a sandbox must not have.
func (p *plan) checkFloor(pod *corev1.Pod) error {
	if err := kube.CheckRestricted(&pod.ObjectMeta, &pod.Spec); err != nil {
		return err
	}
	s := &pod.Spec
	if err := p.checkPod(s); err != nil {
		return err
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

func (p *plan) checkPod(s *corev1.PodSpec) error {
	switch {
	case s.ShareProcessNamespace != nil && *s.ShareProcessNamespace:
		return fmt.Errorf("shareProcessNamespace: must be false")
	case s.RestartPolicy != corev1.RestartPolicyNever:
		return fmt.Errorf("restartPolicy: must be Never, because a sandbox that lost its processes is another one")
	case mountsToken(s) && !p.options.MountServiceAccountToken:
		return fmt.Errorf("automountServiceAccountToken: must be false, unless mount_service_account_token is set")
	case s.NodeName != "":
		return fmt.Errorf("nodeName: must be left to the scheduler; use node_selector")
	case len(s.EphemeralContainers) > 0:
		return fmt.Errorf("ephemeralContainers: must be empty")
	}
	if c := s.SecurityContext; c != nil && (c.FSGroup != nil && *c.FSGroup == 0 || slices.Contains(c.SupplementalGroups, 0)) {
		return fmt.Errorf("fsGroup and supplementalGroups: must be above 0")
	}
	return p.checkAccount(s)
}

// checkAccount keeps the server's own service account, with which a pod could
// command all sandboxes, away from them.
func (p *plan) checkAccount(s *corev1.PodSpec) error {
	account := s.ServiceAccountName
	if account == "" {
		account = s.DeprecatedServiceAccount
	}
	if p.ownAccount == "" || p.options.NamespacePerSandbox {
		return nil
	}
	if account == p.ownAccount || account == "" && p.ownAccount == defaultAccount && mountsToken(s) {
		return fmt.Errorf("serviceAccountName: %s is the server's own", p.ownAccount)
	}
	return nil
}

func mountsToken(s *corev1.PodSpec) bool {
	return s.AutomountServiceAccountToken == nil || *s.AutomountServiceAccountToken
}

func (p *plan) checkVolume(v corev1.Volume) error {
	switch {
	case v.Secret != nil:
		return p.checkSecret(v.Secret.SecretName)
	case v.CSI != nil && v.CSI.NodePublishSecretRef != nil:
		return p.checkSecret(v.CSI.NodePublishSecretRef.Name)
	case v.Projected == nil:
		return nil
	}
	for _, source := range v.Projected.Sources {
		if source.Secret != nil {
			if err := p.checkSecret(source.Secret.Name); err != nil {
				return err
			}
		}
		if (source.ServiceAccountToken != nil || source.PodCertificate != nil) && !p.options.MountServiceAccountToken {
			return fmt.Errorf("a service account's token or a pod's certificate: needs mount_service_account_token")
		}
	}
	return nil
}

// checkSecret returns an error unless a pod of the template may read the Secret.
func (p *plan) checkSecret(name string) error {
	if name != "" && name == p.secret || slices.Contains(p.options.Secrets, name) {
		return nil
	}
	return fmt.Errorf("secret %q: must be listed in the template's secrets", name)
}

// checkContainer checks what the standard leaves open: groups, devices, Secrets
// and limits.
func (p *plan) checkContainer(pod *corev1.PodSecurityContext, c *corev1.Container) error {
	var user, group *int64
	if pod != nil {
		user, group = pod.RunAsUser, pod.RunAsGroup
	}
	if s := c.SecurityContext; s != nil && s.RunAsUser != nil {
		user = s.RunAsUser
	}
	if s := c.SecurityContext; s != nil && s.RunAsGroup != nil {
		group = s.RunAsGroup
	}
	switch {
	case user == nil || *user == 0 || group == nil || *group == 0:
		return fmt.Errorf("runAsUser and runAsGroup: must be above 0")
	case len(c.VolumeDevices) > 0:
		return fmt.Errorf("volumeDevices: must be empty")
	}
	for _, e := range c.Env {
		if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
			if err := p.checkSecret(e.ValueFrom.SecretKeyRef.Name); err != nil {
				return fmt.Errorf("env %s: %w", e.Name, err)
			}
		}
	}
	for _, from := range c.EnvFrom {
		if from.SecretRef != nil {
			if err := p.checkSecret(from.SecretRef.Name); err != nil {
				return fmt.Errorf("envFrom: %w", err)
			}
		}
	}
	for name := range p.resources().Limits {
		if limit, ok := c.Resources.Limits[name]; !ok || limit.Sign() <= 0 {
			return fmt.Errorf("resources: there must be a limit on %s", name)
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
	agent := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == agentDir })
	if agent < 0 || c.VolumeMounts[agent].Name != agentVolume || !c.VolumeMounts[agent].ReadOnly {
		return fmt.Errorf("container %s: volumeMounts: %s must stay as it is", c.Name, agentDir)
	}
	return nil
}
