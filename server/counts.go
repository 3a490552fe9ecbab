package server

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/limit"
)

// counts counts sandboxes, so that the server can reject a creation without
// listing them all. It is exact for this server: concurrent creations never
// exceed a limit together. It learns by listing what other servers create and
// delete, once a minute and before it rejects a creation.
type counts struct {
	provider          providers.Provider
	server, perTenant int // limits; 0: none

	// listing is held during a listing.
	listing limit.Slots

	mu      sync.Mutex
	names   map[string]*counted
	tenants map[string]int
	listed  time.Time     // when the last listing ended; zero before the first
	took    time.Duration // how long it took
	// changed are the names that changed during a listing, whose result is older.
	// Nil: no listing runs.
	changed map[string]bool
}

// counted is one name in use.
type counted struct {
	tenant string
	// incarnation is empty if the sandbox may not exist yet.
	incarnation string
	pending     int // creations under way
}

const (
	recountInterval = time.Minute
	// recountShare keeps listings before rejections, which callers can cause, to
	// a small part of the time.
	recountShare = 10
	recountPause = time.Second
)

func newCounts(p providers.Provider, l Limits) *counts {
	return &counts{
		provider: p, server: l.MaxSandboxes, perTenant: l.MaxSandboxesPerTenant,
		listing: limit.New(1), names: make(map[string]*counted), tenants: make(map[string]int),
	}
}

func (c *counts) limited() bool { return c.server > 0 || c.perTenant > 0 }

// reserve counts a sandbox before its creation, unless it exists. The
// reservation must be settled.
func (c *counts) reserve(ctx context.Context, key agentconn.Key) error {
	if !c.limited() {
		return nil
	}
	if err := c.list(ctx, false); err != nil {
		return err
	}
	if c.take(key, false) == nil {
		return nil
	}
	// The sandbox may have been created elsewhere, or others deleted.
	info, err := c.provider.Get(ctx, key.Name)
	switch {
	case err == nil:
		return c.take(key, info.Spec.Tenant == key.Tenant)
	case !errors.Is(err, providers.ErrNotFound):
		return err
	}
	if err := c.list(ctx, true); err != nil {
		return err
	}
	return c.take(key, false)
}

// take reserves a name. An existing sandbox may exceed the limits.
func (c *counts) take(key agentconn.Key, exists bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.names[key.Name]
	if n == nil {
		switch used := len(c.names); {
		case exists:
		case c.server > 0 && used >= c.server:
			return quotaFault("max_sandboxes", "this server", c.server, used)
		case c.perTenant > 0 && c.tenants[key.Tenant] >= c.perTenant:
			return quotaFault("max_sandboxes_per_tenant", "this tenant", c.perTenant, c.tenants[key.Tenant])
		}
		n = c.add(key.Name, key.Tenant)
	}
	n.pending++
	c.touch(key.Name)
	return nil
}

func quotaFault(name, whose string, limit, used int) error {
	return fault.New(sandboxv1.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED,
		"%s may have %d sandboxes and has %d; delete some, or wait until some expire", whose, limit, used).
		With("quota", name).With("limit", strconv.Itoa(limit)).With("used", strconv.Itoa(used))
}

// settle ends a reservation with the incarnation that exists now, or "" for
// none.
func (c *counts) settle(key agentconn.Key, incarnation string) {
	if !c.limited() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.touch(key.Name)
	n := c.names[key.Name]
	if n == nil {
		return
	}
	n.pending--
	if incarnation != "" {
		n.incarnation = incarnation
	}
	if n.pending <= 0 && n.incarnation == "" {
		c.remove(key.Name)
	}
}

// forget stops counting a sandbox that was deleted.
func (c *counts) forget(name, incarnation string) {
	if !c.limited() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.names[name]
	if n == nil || n.incarnation != incarnation {
		return
	}
	c.touch(name)
	n.incarnation = ""
	if n.pending <= 0 {
		c.remove(name)
	}
}

// add, remove and touch need c.mu.
func (c *counts) add(name, tenant string) *counted {
	n := &counted{tenant: tenant}
	c.names[name] = n
	c.tenants[tenant]++
	return n
}

func (c *counts) remove(name string) {
	tenant := c.names[name].tenant
	delete(c.names, name)
	if c.tenants[tenant]--; c.tenants[tenant] == 0 {
		delete(c.tenants, tenant)
	}
}

func (c *counts) touch(name string) {
	if c.changed != nil {
		c.changed[name] = true
	}
}

// list counts the provider's sandboxes. Unless fresh is true, one listing in
// the server's life is enough.
func (c *counts) list(ctx context.Context, fresh bool) error {
	enough := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		pause := max(recountPause, recountShare*c.took)
		return !c.listed.IsZero() && (!fresh || time.Since(c.listed) < pause)
	}
	if enough() {
		return nil
	}
	if err := c.listing.Acquire(ctx); err != nil {
		return err
	}
	defer c.listing.Release()
	if enough() {
		return nil
	}
	return c.recount(ctx)
}

// recount lists. The caller holds c.listing.
func (c *counts) recount(ctx context.Context) error {
	began := time.Now()
	c.mu.Lock()
	c.changed = make(map[string]bool)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.changed = nil
		c.mu.Unlock()
	}()
	found := make(map[string]counted)
	for q := (providers.Query{Limit: maxPage}); ; {
		page, err := c.provider.List(ctx, q)
		if err != nil {
			return err
		}
		for _, info := range page.Sandboxes {
			found[info.Name] = counted{tenant: info.Spec.Tenant, incarnation: info.Incarnation}
		}
		if q.Token = page.Next; q.Token == "" {
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, n := range c.names {
		if _, ok := found[name]; !ok && n.pending == 0 && !c.changed[name] {
			c.remove(name)
		}
	}
	for name, f := range found {
		n := c.names[name]
		switch {
		case c.changed[name]:
		case n == nil:
			c.add(name, f.tenant).incarnation = unknownIncarnation(f.incarnation)
		case n.pending == 0:
			n.incarnation = unknownIncarnation(f.incarnation)
		}
	}
	c.listed, c.took = time.Now(), time.Since(began)
	return nil
}

// unknownIncarnation is that of an existing sandbox without an incarnation yet.
func unknownIncarnation(incarnation string) string {
	if incarnation == "" {
		return "unknown"
	}
	return incarnation
}

// recount counts what other servers change, until the server halts.
func (s *Server) recount() {
	ctx, cancel := s.untilHalt()
	defer cancel()
	tick := time.NewTicker(recountInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := s.counts.list(ctx, true); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "sandboxes could not be counted", "error", err)
		}
	}
}
