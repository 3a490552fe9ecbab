package limit

import (
	"context"
	"sync"
)

// tenantShare is the part of all slots that one tenant may hold. A burst of creations
// then leaves processor time to other tenants' commands, and slots to their creations.
const tenantShare = 4

// Shared bounds one kind of calls in progress, of all tenants and of each.
type Shared struct {
	all       Slots
	perTenant int

	mu      sync.Mutex
	tenants map[string]*tenantSlots // of the tenants with a call, also a waiting one
}

type tenantSlots struct {
	slots Slots
	users int
}

// NewShared returns n slots. Where callers have tenants, each tenant has a
// share of them.
func NewShared(n int, tenants bool) *Shared {
	if !tenants {
		return NewDivided(n, 1)
	}
	return NewDivided(n, tenantShare)
}

// NewDivided returns n slots, of which each tenant has one part, and at least one slot.
func NewDivided(n, parts int) *Shared {
	return &Shared{all: New(n), perTenant: max(n/parts, 1), tenants: map[string]*tenantSlots{}}
}

// PerTenant returns how many slots one tenant may hold.
func (c *Shared) PerTenant() int { return c.perTenant }

// Used returns how many slots are taken, and how many there are.
func (c *Shared) Used() (taken, all int) { return len(c.all), cap(c.all) }

// TryTake takes a slot if one is free at once.
func (c *Shared) TryTake(tenant string) bool {
	t := c.enter(tenant)
	if !t.slots.TryAcquire() {
		c.leave(tenant, t)
		return false
	}
	if !c.all.TryAcquire() {
		t.slots.Release()
		c.leave(tenant, t)
		return false
	}
	return true
}

// Take waits for a slot: first for one of the tenant's, so that a tenant's queue
// does not delay others.
func (c *Shared) Take(ctx context.Context, tenant string) error {
	t := c.enter(tenant)
	if err := t.slots.Acquire(ctx); err != nil {
		c.leave(tenant, t)
		return err
	}
	if err := c.all.Acquire(ctx); err != nil {
		t.slots.Release()
		c.leave(tenant, t)
		return err
	}
	return nil
}

// Release gives a slot back.
func (c *Shared) Release(tenant string) {
	c.all.Release()
	c.mu.Lock()
	t := c.tenants[tenant]
	c.mu.Unlock()
	t.slots.Release()
	c.leave(tenant, t)
}

func (c *Shared) enter(tenant string) *tenantSlots {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.tenants[tenant]
	if t == nil {
		t = &tenantSlots{slots: New(c.perTenant)}
		c.tenants[tenant] = t
	}
	t.users++
	return t
}

func (c *Shared) leave(tenant string, t *tenantSlots) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.users--; t.users == 0 {
		delete(c.tenants, tenant)
	}
}
