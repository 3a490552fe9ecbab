package fake

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/sandgate/sandgate/providers"
)

var _ providers.Pooler = (*Provider)(nil)

// keeper fills the pools of one provider until it is stopped.
type keeper struct {
	pools  []providers.Pool
	kick   chan struct{}
	cancel context.CancelCauseFunc
	done   chan struct{}
}

// lookAfter is how often a keeper looks for unclaimed sandboxes that ended.
const lookAfter = 20 * time.Millisecond

var errKeeperStopped = errors.New("the pools are not kept any more")

// KeepPools fills pools in the background. For each sandbox it starts, the hook
// is called with "fill" and the template's name.
func (p *Provider) KeepPools(ctx context.Context, pools []providers.Pool) error {
	if err := p.begin(ctx, "keep_pools", ""); err != nil {
		return err
	}
	for i, pool := range pools {
		again := slices.ContainsFunc(pools[:i], func(q providers.Pool) bool { return q.Template == pool.Template })
		if pool.Template == "" || pool.Target < 1 || again {
			return fmt.Errorf("pool of template %q with %d sandboxes: %w", pool.Template, pool.Target, providers.ErrInvalid)
		}
		if err := errors.Join(noOptions(pool.Spec.TemplateOptions), noOptions(pool.Spec.Options)); err != nil {
			return fmt.Errorf("pool of template %q: %w", pool.Template, err)
		}
	}
	p.keeping.Lock()
	defer p.keeping.Unlock()
	p.stopKeeper()
	if err := p.m.drain(pools); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	k := &keeper{pools: slices.Clone(pools), kick: make(chan struct{}, 1), cancel: cancel, done: make(chan struct{})}
	p.m.mu.Lock()
	p.keeper = k
	p.m.mu.Unlock()
	go p.keep(ctx, k)
	return nil
}

// PoolStatus counts the machine's sandboxes.
func (p *Provider) PoolStatus(ctx context.Context, template string) (providers.PoolStatus, error) {
	if err := p.begin(ctx, "pool_status", template); err != nil {
		return providers.PoolStatus{}, err
	}
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	if p.keeper != nil {
		for _, pool := range p.keeper.pools {
			if pool.Template == template {
				return p.m.count(pool), nil
			}
		}
	}
	return providers.PoolStatus{}, fmt.Errorf("pool of template %q: %w", template, providers.ErrNotFound)
}

// count needs m.mu.
func (m *Machine) count(pool providers.Pool) providers.PoolStatus {
	status := providers.PoolStatus{Target: pool.Target}
	for _, s := range m.unclaimed {
		if fits(s.info.Spec, pool.Spec) {
			status.Available++
		}
	}
	for _, s := range m.sandboxes {
		if s.info.FromPool && s.info.Spec.Template == pool.Template {
			status.Active++
		}
	}
	status.Total = status.Available + status.Active + m.starting[pool.Template]
	return status
}

// fits compares what a started sandbox cannot change any more.
func fits(started, wanted providers.Spec) bool {
	for _, s := range []*providers.Spec{&started, &wanted} {
		s.Tenant, s.ID, s.Hash, s.Labels, s.TTL, s.IdleTTL, s.Access = "", "", "", nil, 0, 0, nil
		if len(s.Env) == 0 {
			s.Env = nil
		}
	}
	return reflect.DeepEqual(started, wanted)
}

// claim needs m.mu; it returns nil when nothing fits.
func (m *Machine) claim(name string, spec providers.Spec) *sandbox {
	for i, s := range m.unclaimed {
		if !fits(s.info.Spec, spec) {
			continue
		}
		m.unclaimed = slices.Delete(m.unclaimed, i, i+1)
		s.info.Name, s.info.FromPool = name, true
		s.made(spec, s.info.Incarnation)
		close(s.ready)
		m.sandboxes[name] = s
		return s
	}
	return nil
}

// BreakUnclaimed ends the agents of all unclaimed sandboxes of a template, as a
// crash would.
func (m *Machine) BreakUnclaimed(template string) error {
	return m.end(func(s *sandbox) bool { return s.info.Spec.Template == template })
}

// drain ends unclaimed sandboxes that none of the pools needs.
func (m *Machine) drain(pools []providers.Pool) error {
	left := make([]int, len(pools))
	for i, pool := range pools {
		left[i] = pool.Target
	}
	return m.end(func(s *sandbox) bool {
		for i, pool := range pools {
			if left[i] > 0 && fits(s.info.Spec, pool.Spec) {
				left[i]--
				return false
			}
		}
		return true
	})
}

// end ends the unclaimed sandboxes that are chosen.
func (m *Machine) end(chosen func(*sandbox) bool) error {
	var gone []*sandbox
	m.mu.Lock()
	m.unclaimed = slices.DeleteFunc(m.unclaimed, func(s *sandbox) bool {
		if chosen(s) {
			gone = append(gone, s)
			return true
		}
		return false
	})
	m.mu.Unlock()
	var errs []error
	for _, s := range gone {
		errs = append(errs, s.stop())
	}
	return errors.Join(errs...)
}

func (p *Provider) stopKeeper() {
	p.m.mu.Lock()
	k := p.keeper
	p.keeper = nil
	p.m.mu.Unlock()
	if k != nil {
		k.cancel(errKeeperStopped)
		<-k.done
	}
}

func (p *Provider) keep(ctx context.Context, k *keeper) {
	defer close(k.done)
	if len(k.pools) == 0 {
		return
	}
	tick := time.NewTicker(lookAfter)
	defer tick.Stop()
	for {
		for _, pool := range k.pools {
			for ctx.Err() == nil && p.fill(ctx, pool) {
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-k.kick:
		case <-tick.C:
		}
	}
}

// fill starts one sandbox and reports whether to go on.
func (p *Provider) fill(ctx context.Context, pool providers.Pool) bool {
	m := p.m
	m.mu.Lock()
	if m.count(pool).Available+m.starting[pool.Template] >= pool.Target {
		m.mu.Unlock()
		return false
	}
	m.starting[pool.Template]++
	m.mu.Unlock()
	s := &sandbox{ready: make(chan struct{}), gone: make(chan struct{})}
	incarnation := rand.Text()
	err := p.begin(ctx, "fill", pool.Template)
	if err == nil {
		err = s.start(m, pool.Spec, incarnation)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.starting[pool.Template]--
	if err != nil {
		return false
	}
	s.info = providers.Info{State: providers.StateActive, Spec: pool.Spec, Incarnation: incarnation}
	m.unclaimed = append(m.unclaimed, s)
	return true
}
