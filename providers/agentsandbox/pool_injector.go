package agentsandbox

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

const (
	// injectAtOnce bounds how many agents are injected at the same time.
	injectAtOnce = 4
	// relistAfter bounds how long a watch is trusted before the next list.
	relistAfter = 30 * time.Second
	// retryPause is the pause after a failed request to the cluster.
	retryPause = 2 * time.Second
	// notYetPause is the pause while a new pool has no pods.
	notYetPause = 100 * time.Millisecond
	// injectTimeout bounds one injection.
	injectTimeout = time.Minute
)

// poolInjector injects the agent into a pool's unclaimed pods, so that a claim
// finds it there. If several servers keep pools in one namespace, only the holder
// of the lease injects. A claim injects the agent into a pod that has none.
type poolInjector struct {
	p       *Provider
	life    context.Context //nolint:containedctx // ends with Close
	slots   chan struct{}
	running sync.WaitGroup

	mu     sync.Mutex
	pools  []keptFor
	stop   context.CancelCauseFunc
	failed map[types.UID]bool // pods that cannot take an agent
}

func newPoolInjector(life context.Context, p *Provider) *poolInjector {
	return &poolInjector{p: p, life: life, slots: make(chan struct{}, injectAtOnce), failed: make(map[types.UID]bool)}
}

var errOtherPools = errors.New("other pools are kept now")

// set replaces the set of pools whose pods get the agent.
func (in *poolInjector) set(pools []keptFor) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.stop != nil {
		in.stop(errOtherPools)
	}
	ctx, stop := context.WithCancelCause(in.life)
	in.pools, in.stop = pools, stop
	if len(pools) == 0 {
		return
	}
	in.running.Go(func() {
		in.p.Lease(injectorLease).Lead(ctx, func(ctx context.Context) {
			var tending sync.WaitGroup
			for _, pool := range pools {
				tending.Go(func() { in.tend(ctx, pool) })
			}
			tending.Wait()
		})
	})
}

func (in *poolInjector) of(template string) (keptFor, bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, pool := range in.pools {
		if pool.pool.Template == template {
			return pool, true
		}
	}
	return keptFor{}, false
}

func (in *poolInjector) wait() {
	in.mu.Lock()
	if in.stop != nil {
		in.stop(errClosed)
	}
	in.mu.Unlock()
	in.running.Wait()
}

// tend looks after one pool's pods until ctx ends.
func (in *poolInjector) tend(ctx context.Context, pool keptFor) {
	for ctx.Err() == nil {
		pause := retryPause
		if err := in.round(ctx, pool); err == nil {
			pause = 0
		} else if errors.Is(err, errNotYet) {
			pause = notYetPause
		} else if ctx.Err() == nil {
			in.p.Log.WarnContext(ctx, "the pool's pods cannot be watched", "pool", pool.name, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

var errNotYet = errors.New("the controller has not taken the pool up yet")

// round lists the pods and watches them for a while.
func (in *poolInjector) round(ctx context.Context, pool keptFor) error {
	w, err := in.p.pools.get(ctx, pool.name)
	if err != nil {
		return err
	}
	if w.Status.Selector == "" {
		return errNotYet
	}
	pods := in.p.Core.Pods(in.p.Namespace)
	list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: w.Status.Selector, ResourceVersion: kube.FromCache})
	if err != nil {
		return err
	}
	for i := range list.Items {
		in.see(ctx, pool, &list.Items[i])
	}
	seconds := int64(relistAfter.Seconds())
	events, err := pods.Watch(ctx, metav1.ListOptions{LabelSelector: w.Status.Selector, ResourceVersion: list.ResourceVersion, TimeoutSeconds: &seconds})
	if err != nil {
		return err
	}
	defer events.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case e, open := <-events.ResultChan():
			if !open {
				return nil
			}
			if pod, ok := e.Object.(*corev1.Pod); ok {
				in.see(ctx, pool, pod)
			}
		}
	}
}

// see injects the agent into a pod that is ready and has none.
func (in *poolInjector) see(ctx context.Context, pool keptFor, pod *corev1.Pod) {
	if !podReady(pod) || pod.Labels[poolHashLabel] == "" {
		return
	}
	s := observed{sandbox: pod.Name, record: record{Sandbox: shared.Sandbox{Spec: pool.pool.Spec}}}
	at, err := s.agentContainer(s.own(pod))
	if err != nil || readAnnotation(pod).fits(at.id) {
		return
	}
	in.mu.Lock()
	skip := in.failed[pod.UID]
	in.failed[pod.UID] = true // while it is at work as well
	in.mu.Unlock()
	if skip {
		return
	}
	in.running.Go(func() {
		var err error
		defer func() {
			if !errors.Is(err, providers.ErrAgentCannotStart) {
				in.mu.Lock()
				delete(in.failed, pod.UID)
				in.mu.Unlock()
			}
		}()
		select {
		case <-ctx.Done():
			return
		case in.slots <- struct{}{}:
		}
		defer func() { <-in.slots }()
		limited, cancel := context.WithTimeout(ctx, injectTimeout)
		defer cancel()
		if _, err = in.p.inject(limited, at, 0); err != nil && ctx.Err() == nil {
			in.p.Log.WarnContext(ctx, "the agent could not be put into a pool's pod", "pod", pod.Name, "error", err)
		}
	})
}

// unclaimed lists the unclaimed pods of a pool.
func (p *Provider) unclaimed(ctx context.Context, w *warmPool) ([]corev1.Pod, error) {
	if w.Status.Selector == "" {
		return nil, nil
	}
	list, err := p.Core.Pods(p.Namespace).List(ctx, metav1.ListOptions{LabelSelector: w.Status.Selector})
	if err != nil {
		return nil, kube.Wrap(ctx, "list pods of pool "+w.Name, err)
	}
	out := list.Items[:0]
	for _, pod := range list.Items {
		if pod.DeletionTimestamp == nil && pod.Labels[poolHashLabel] != "" {
			out = append(out, pod)
		}
	}
	return out, nil
}

func podReady(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
