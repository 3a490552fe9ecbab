package agentsandbox

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
)

// Ending tells how the container ended in which an incarnation ran, where the
// kubelet has started it again since. Of a pod that was replaced nothing is left
// to tell.
func (p *Provider) Ending(ctx context.Context, name, incarnation string) (providers.Ending, error) {
	s, pod, err := p.look(ctx, name)
	if err != nil {
		return providers.Ending{}, fmt.Errorf("the end of an incarnation of %s: %w", name, err)
	}
	return s.ending(pod, incarnation), nil
}

func (s observed) ending(pod *corev1.Pod, of string) providers.Ending {
	if pod == nil {
		return providers.Ending{}
	}
	c := s.container(pod)
	if c == nil {
		return providers.Ending{}
	}
	last := readAnnotation(pod).Generation
	for _, t := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
		if t == nil || !ranIn(pod.UID, t.ContainerID, last, of) {
			continue
		}
		end := kube.EndOf(pod, t.ContainerID)
		return providers.Ending{Known: true, Message: end.Message, Failure: end.Failure}
	}
	// The kubelet reports an end up to a few seconds late.
	return providers.Ending{Pending: c.State.Running != nil && ranIn(pod.UID, c.ContainerID, last, of)}
}

// generationsBack bounds the generations of agents that are compared.
const generationsBack = 1000

// ranIn reports whether an incarnation was one of a container, of whose pod
// last is the latest agent's generation.
func ranIn(pod types.UID, container string, last int, of string) bool {
	for g := max(0, last); g >= max(0, last-generationsBack); g-- {
		if container != "" && incarnation(pod, container, g) == of {
			return true
		}
	}
	return false
}
