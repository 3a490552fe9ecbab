package agentsandbox

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
)

// isolation reports which of the requested limits the operator's pod spec
// enforces.
func (s observed) isolation(out *providers.Info, pod *corev1.Pod) {
	if pod.Spec.RuntimeClassName != nil {
		out.Runtime = "agent-sandbox, " + *pod.Spec.RuntimeClassName
	}
	name := s.containerName(pod)
	i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == name })
	if i < 0 {
		return
	}
	c := pod.Spec.Containers[i]
	if below := kube.CheckRestricted(&pod.ObjectMeta, &pod.Spec); below != nil {
		out.NotEnforced = append(out.NotEnforced, "pod security: "+below.Error())
	} else {
		out.Unprivileged = true
	}
	out.ReadOnlySystem = c.SecurityContext != nil && isTrue(c.SecurityContext.ReadOnlyRootFilesystem)
	asked := s.record.Spec.Resources
	for _, limit := range []struct {
		what        string
		asked, held int64
	}{
		{"memory", asked.MemoryBytes, c.Resources.Limits.Memory().Value()},
		{"cpu", int64(asked.CPUMillis), c.Resources.Limits.Cpu().MilliValue()},
		{"disk", asked.DiskBytes, c.Resources.Limits.StorageEphemeral().Value()},
	} {
		switch {
		case limit.asked == 0:
		case limit.held == 0:
			out.NotEnforced = append(out.NotEnforced, limit.what+": the SandboxTemplate sets no limit")
		case limit.held > limit.asked:
			out.NotEnforced = append(out.NotEnforced, fmt.Sprintf("%s: the SandboxTemplate's limit is %d", limit.what, limit.held))
		}
	}
	if asked.MaxProcesses > 0 {
		out.NotEnforced = append(out.NotEnforced, "processes: a pod's spec cannot say it; the kubelet's podPidsLimit holds")
	}
	if s.record.Spec.Network == providers.NetworkNone {
		out.NotEnforced = append(out.NotEnforced, "network: the SandboxTemplate's network policy holds, as far as the cluster's network enforces it")
	}
}

func isTrue(b *bool) bool { return b != nil && *b }
