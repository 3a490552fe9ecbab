package kubernetes

import (
	"context"
	"errors"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sandgate/sandgate/providers/internal/kube"
)

// holdings are the pools whose pods this server holds streams to.
type holdings map[string]context.CancelCauseFunc

var errNotKept = errors.New("the pool is not kept any more")

// hold holds streams to the ready pods of these pools and of no others. Every
// server does so for itself, whoever fills the pools.
func (p *Provider) hold(ctx context.Context, kept []*pool, now holdings) {
	gone := maps.Clone(now)
	for _, one := range kept {
		delete(gone, one.key)
		if now[one.key] != nil {
			continue
		}
		tend, stop := context.WithCancelCause(ctx)
		now[one.key] = stop
		selector := labels.Set{managedBy: managedByValue, labelPool: one.key, labelUse: useReady}.String()
		p.work.Go(func() {
			p.held.Tend(tend, kube.Waiting{
				Name: one.key, Pods: p.pods(p.namespace),
				Selector: func(context.Context) (string, error) { return selector, nil },
				Connect: func(pod *corev1.Pod) (kube.Container, []string, bool) {
					// By its port a pod is reached without an exec.
					byExec := agentPort(pod, p.config.Way) == 0
					return kube.Container{Namespace: pod.Namespace, Pod: pod.Name, Name: containerName}, connectCommand(), byExec && usable(pod)
				},
			})
		})
	}
	for key, stop := range gone {
		stop(errNotKept)
		delete(now, key)
	}
}
