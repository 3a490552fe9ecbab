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
	// keeperAtOnce bounds how many agents are put in at the same time.
	keeperAtOnce = 4
	// keeperRelist bounds how long a watch is trusted.
	keeperRelist = 30 * time.Second
	// keeperRetry is the pause after the cluster did not answer.
	keeperRetry = 2 * time.Second
	// keeperNotYet is the pause while a new pool has no pods.
	keeperNotYet = 100 * time.Millisecond
	// injectTimeout bounds one injection.
	injectTimeout = time.Minute
)

// keeper puts the agent into pods that nobody has claimed yet, so that a claim
// finds it there. Of servers that keep pools in one namespace one does so; what
// it has not done, a claim does.
type keeper struct {
	p       *Provider
	life    context.Context //nolint:containedctx // the keeper's own end, which Close sets
	slots   chan struct{}
	running sync.WaitGroup

	mu     sync.Mutex
	pools  []keptFor
	stop   context.CancelCauseFunc
	failed map[types.UID]bool // pods that cannot take an agent
}

func newKeeper(life context.Context, p *Provider) *keeper {
	return &keeper{p: p, life: life, slots: make(chan struct{}, keeperAtOnce), failed: make(map[types.UID]bool)}
}

var errOtherPools = errors.New("other pools are kept now")

// set replaces the set of pools to look after.
func (k *keeper) set(pools []keptFor) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stop != nil {
		k.stop(errOtherPools)
	}
	ctx, stop := context.WithCancelCause(k.life)
	k.pools, k.stop = pools, stop
	if len(pools) == 0 {
		return
	}
	k.running.Go(func() {
		k.p.lease(keeperLease).Lead(ctx, func(ctx context.Context) {
			var tending sync.WaitGroup
			for _, pool := range pools {
				tending.Go(func() { k.tend(ctx, pool) })
			}
			tending.Wait()
		})
	})
}

func (k *keeper) of(template string) (keptFor, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, pool := range k.pools {
		if pool.pool.Template == template {
			return pool, true
		}
	}
	return keptFor{}, false
}

func (k *keeper) wait() {
	k.mu.Lock()
	if k.stop != nil {
		k.stop(errClosed)
	}
	k.mu.Unlock()
	k.running.Wait()
}

// tend looks after one pool's pods until ctx ends.
func (k *keeper) tend(ctx context.Context, pool keptFor) {
	for ctx.Err() == nil {
		pause := keeperRetry
		if err := k.round(ctx, pool); err == nil {
			pause = 0
		} else if errors.Is(err, errNotYet) {
			pause = keeperNotYet
		} else if ctx.Err() == nil {
			k.p.log.WarnContext(ctx, "the pool's pods cannot be watched", "pool", pool.name, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

var errNotYet = errors.New("the controller has not taken the pool up yet")

// round lists the pods and watches them for a while.
func (k *keeper) round(ctx context.Context, pool keptFor) error {
	w, err := k.p.pools.get(ctx, pool.name)
	if err != nil {
		return err
	}
	if w.Status.Selector == "" {
		return errNotYet
	}
	pods := k.p.core.Pods(k.p.namespace)
	list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: w.Status.Selector, ResourceVersion: kube.FromCache})
	if err != nil {
		return err
	}
	for i := range list.Items {
		k.see(ctx, pool, &list.Items[i])
	}
	seconds := int64(keeperRelist.Seconds())
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
				k.see(ctx, pool, pod)
			}
		}
	}
}

// see puts the agent into a pod that is ready and has none.
func (k *keeper) see(ctx context.Context, pool keptFor, pod *corev1.Pod) {
	if !podReady(pod) || pod.Labels[poolHashLabel] == "" {
		return
	}
	s := observed{sandbox: pod.Name, record: record{Sandbox: shared.Sandbox{Spec: pool.pool.Spec}}}
	at, err := s.agentContainer(s.own(pod))
	if err != nil || readAnnotation(pod).fits(at.id) {
		return
	}
	k.mu.Lock()
	skip := k.failed[pod.UID]
	k.failed[pod.UID] = true // while it is at work as well
	k.mu.Unlock()
	if skip {
		return
	}
	k.running.Go(func() {
		select {
		case <-ctx.Done():
			return
		case k.slots <- struct{}{}:
		}
		defer func() { <-k.slots }()
		limited, cancel := context.WithTimeout(ctx, injectTimeout)
		defer cancel()
		_, err := k.p.inject(limited, at, 0)
		if err == nil || !errors.Is(err, providers.ErrAgentCannotStart) {
			k.mu.Lock()
			delete(k.failed, pod.UID)
			k.mu.Unlock()
		}
		if err != nil && ctx.Err() == nil {
			k.p.log.WarnContext(ctx, "the agent could not be put into a pool's pod", "pod", pod.Name, "error", err)
		}
	})
}

// unclaimed lists the unclaimed pods of a pool.
func (p *Provider) unclaimed(ctx context.Context, w *warmPool) ([]corev1.Pod, error) {
	if w.Status.Selector == "" {
		return nil, nil
	}
	list, err := p.core.Pods(p.namespace).List(ctx, metav1.ListOptions{LabelSelector: w.Status.Selector})
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
