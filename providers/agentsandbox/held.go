package agentsandbox

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/sandgate/sandgate/providers/internal/kube"
)

// hold holds streams to the agents in a pool's unclaimed pods. Every server does
// so for itself, whoever put the agents in.
func (p *Provider) hold(ctx context.Context, pool keptFor) {
	p.held.Tend(ctx, kube.Waiting{
		Name: pool.name, Pods: p.core.Pods(p.namespace),
		Selector: func(ctx context.Context) (string, error) {
			w, err := p.pools.get(ctx, pool.name)
			if err != nil {
				return "", err
			}
			return w.Status.Selector, nil
		},
		Connect: func(pod *corev1.Pod) (kube.Container, []string, bool) {
			if !podReady(pod) || pod.Labels[poolHashLabel] == "" {
				return kube.Container{}, nil, false
			}
			s := subject{sandbox: pod.Name, record: record{Spec: pool.pool.Spec}}
			at, err := s.seatOf(s.own(pod))
			n := readNote(pod)
			if err != nil || !n.serves(at.id) || p.byPort(n) {
				return kube.Container{}, nil, false
			}
			return p.at(at), p.connectCommand(at, n), true
		},
	})
}

func (p *Provider) connectCommand(s seat, n note) []string {
	return n.Connect(incarnation(s.pod.UID, s.id, n.Generation))
}
