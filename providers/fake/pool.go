package fake

import (
	"context"
	"crypto/rand"
	"errors"
	"iter"
	"net"
	"slices"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/pool"
)

var _ providers.Pooler = (*Provider)(nil)

// lookInterval is the time between two looks for unclaimed sandboxes that ended.
const lookInterval = 20 * time.Millisecond

// KeepPools fills pools in the background. For each sandbox it starts, the hook
// is called with "fill" and the template's name.
func (p *Provider) KeepPools(ctx context.Context, pools []providers.Pool) error {
	if err := p.begin(ctx, "keep_pools", ""); err != nil {
		return err
	}
	return p.pools.Keep(ctx, pools)
}

func check(p providers.Pool) error {
	if p.Template == "" {
		return errors.New("no template")
	}
	return errors.Join(noOptions(p.Spec.TemplateOptions), noOptions(p.Spec.Options))
}

// PoolStatus counts the machine's sandboxes.
func (p *Provider) PoolStatus(ctx context.Context, template string) (providers.PoolStatus, error) {
	if err := p.begin(ctx, "pool_status", template); err != nil {
		return providers.PoolStatus{}, err
	}
	status, err := p.pools.Status(ctx, template)
	if err != nil {
		return providers.PoolStatus{}, err
	}
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	for _, s := range p.m.sandboxes {
		if s.info.FromPool && s.info.Spec.Template == template {
			status.Active++
		}
	}
	status.Total += status.Active
	return status, nil
}

// driver is the machine as its pools see it.
type driver struct{ p *Provider }

func (d driver) Start(ctx context.Context, want providers.Pool, name string) error {
	m := d.p.m
	m.mu.Lock()
	n := m.starting[want.Template]
	for _, s := range m.unclaimed {
		if fits(s.info.Spec, want.Spec) {
			n++
		}
	}
	if n >= want.Target {
		m.mu.Unlock()
		return pool.ErrFull
	}
	m.starting[want.Template]++
	m.mu.Unlock()
	s := &sandbox{ready: make(chan struct{}), gone: make(chan struct{})}
	incarnation := rand.Text()
	err := d.p.begin(ctx, "fill", want.Template)
	if err == nil {
		err = s.start(m, want.Spec, incarnation)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.starting[want.Template]--
	if err != nil {
		return err
	}
	s.info = providers.Info{Name: name, State: providers.StateActive, Spec: want.Spec, Incarnation: incarnation, CreateTime: time.Now()}
	close(s.ready)
	m.unclaimed = append(m.unclaimed, s)
	return nil
}

func (d driver) Unclaimed(_ context.Context, spec *providers.Spec, _ bool) iter.Seq2[pool.Member[*sandbox], error] {
	d.p.m.mu.Lock()
	defer d.p.m.mu.Unlock()
	var members []pool.Member[*sandbox]
	for _, s := range d.p.m.unclaimed {
		if spec == nil || fits(s.info.Spec, *spec) {
			members = append(members, pool.Member[*sandbox]{Name: s.info.Name, Created: s.info.CreateTime, Value: s})
		}
	}
	return func(yield func(pool.Member[*sandbox], error) bool) {
		for _, m := range members {
			if !yield(m, nil) {
				return
			}
		}
	}
}

// claim is what a creation wants from a pool.
type claim struct {
	name    string
	spec    providers.Spec
	claimed *sandbox
}

func (d driver) Claim(ctx context.Context, s *sandbox, c *claim) (net.Conn, error) {
	d.p.m.mu.Lock()
	i := slices.Index(d.p.m.unclaimed, s)
	if i >= 0 {
		d.p.m.unclaimed = slices.Delete(d.p.m.unclaimed, i, i+1)
		s.info.Name, s.info.FromPool = c.name, true
		s.made(c.spec, s.info.Incarnation)
	}
	d.p.m.mu.Unlock()
	if i < 0 {
		return nil, nil
	}
	conn, err := s.dial(ctx)
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	c.claimed = s
	return conn, nil
}

func (d driver) Drop(_ context.Context, m pool.Member[*sandbox]) error {
	return d.p.m.end(func(s *sandbox) bool { return s == m.Value })
}

func fits(started, wanted providers.Spec) bool {
	return pool.Fingerprint(started) == pool.Fingerprint(wanted)
}

// BreakUnclaimed ends the agents of all unclaimed sandboxes of a template, as a
// crash would.
func (m *Machine) BreakUnclaimed(template string) error {
	return m.end(func(s *sandbox) bool { return s.info.Spec.Template == template })
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
