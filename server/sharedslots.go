package server

import (
	"context"
	"sync"

	"github.com/sandgate/sandgate/server/limit"
)

// tenantShare is the part of all slots that one tenant may hold. A burst of creations
// then leaves processor time to other tenants' commands, and slots to their creations.
const tenantShare = 4

// sharedSlots bounds one kind of calls in progress, of all tenants and of each.
type sharedSlots struct {
	all       limit.Slots
	perTenant int

	mu      sync.Mutex
	tenants map[string]*tenantSlots // of the tenants with a call, also a waiting one
}

type tenantSlots struct {
	slots limit.Slots
	users int
}

// newSharedSlots returns n slots. Where callers have tenants, each tenant has a
// share of them.
func newSharedSlots(n int, tenants bool) *sharedSlots {
	c := &sharedSlots{all: limit.New(n), perTenant: n, tenants: map[string]*tenantSlots{}}
	if tenants {
		c.perTenant = max(n/tenantShare, 1)
	}
	return c
}

// tryTake takes a slot if one is free at once.
func (c *sharedSlots) tryTake(tenant string) bool {
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

// take waits for a slot: first for one of the tenant's, so that a tenant's queue
// does not delay others.
func (c *sharedSlots) take(ctx context.Context, tenant string) error {
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

// release gives a slot back.
func (c *sharedSlots) release(tenant string) {
	c.all.Release()
	c.mu.Lock()
	t := c.tenants[tenant]
	c.mu.Unlock()
	t.slots.Release()
	c.leave(tenant, t)
}

func (c *sharedSlots) enter(tenant string) *tenantSlots {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.tenants[tenant]
	if t == nil {
		t = &tenantSlots{slots: limit.New(c.perTenant)}
		c.tenants[tenant] = t
	}
	t.users++
	return t
}

func (c *sharedSlots) leave(tenant string, t *tenantSlots) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.users--; t.users == 0 {
		delete(c.tenants, tenant)
	}
}
