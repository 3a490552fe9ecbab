package kubernetes

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
)

// pools are those that this server was told to keep.
type pools struct {
	wake chan struct{}
	// version grows when something may have changed.
	version atomic.Uint64

	mu     sync.Mutex
	kept   []*pool
	drain  bool // what is not kept has not been looked for yet
	leader leaders
}

// pool is one pool as this server sees it.
type pool struct {
	template string
	key      string
	target   int
	spec     providers.Spec

	mu sync.Mutex
	// starting are the pods that this server brings up.
	starting map[types.UID]bool
	// failed delays the next try after one that failed.
	failed   int
	notUntil time.Time

	// settled is the version at which the pool was found as it should be, and 0
	// when it was not; looked is when.
	settled uint64
	looked  time.Time
}

// KeepPools checks the pools and has them filled in the background.
func (p *Provider) KeepPools(_ context.Context, list []providers.Pool) error {
	kept := make([]*pool, 0, len(list))
	p.pools.mu.Lock()
	defer p.pools.mu.Unlock()
	for _, want := range list {
		pl, err := p.plan("pool", want.Spec)
		if err != nil {
			return fmt.Errorf("pool of template %q: %w", want.Template, err)
		}
		if !pl.poolable() {
			return fmt.Errorf("pool of template %q: namespace_per_sandbox and claim_templates with retain need the sandbox's name, which a pool's pod has not: %w",
				want.Template, providers.ErrInvalid)
		}
		if want.Target < 1 {
			return fmt.Errorf("pool of template %q: target %d is below 1: %w", want.Template, want.Target, providers.ErrInvalid)
		}
		one := &pool{template: want.Template, key: pl.poolKey(), target: want.Target, spec: want.Spec, starting: map[types.UID]bool{}}
		for _, before := range p.pools.kept {
			if before.key == one.key && before.template == one.template {
				before.mu.Lock()
				before.target = one.target
				before.mu.Unlock()
				one = before
			}
		}
		kept = append(kept, one)
	}
	p.pools.kept, p.pools.drain = kept, true
	p.wakePools()
	return nil
}

func (p *Provider) wakePools() {
	p.pools.version.Add(1)
	select {
	case p.pools.wake <- struct{}{}:
	default:
	}
}

// PoolStatus counts a pool's pods.
func (p *Provider) PoolStatus(ctx context.Context, template string) (providers.PoolStatus, error) {
	var found *pool
	p.pools.mu.Lock()
	for _, one := range p.pools.kept {
		if one.template == template {
			found = one
		}
	}
	p.pools.mu.Unlock()
	if found == nil {
		return providers.PoolStatus{}, fmt.Errorf("pool of template %q: %w", template, providers.ErrNotFound)
	}
	pods, err := p.glancePool(ctx, found.key)
	if err != nil {
		return providers.PoolStatus{}, err
	}
	status := providers.PoolStatus{Target: found.wanted()}
	for i := range pods {
		if !alive(&pods[i]) {
			continue
		}
		status.Total++
		switch pods[i].Labels[labelUse] {
		case useReady:
			status.Available++
		case useClaimed:
			status.Active++
		}
	}
	return status, nil
}

func (o *pool) wanted() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.target
}

// alive reports whether a pod has not ended and is not about to.
func alive(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && kube.Ended(pod, "") == nil && kube.Ended(pod, containerName) == nil
}
