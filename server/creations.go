package server

import (
	"context"
	"sync"
	"time"

	"github.com/sandgate/sandgate/server/limit"
)

// besideParts is the part of all slots that a tenant's new creations may hold while other
// tenants have calls: half a processor's worth with the local provider, whose creations
// keep the processors busy at eight for each.
const besideParts = 16

// newTime is how long a creation counts as new. One that takes longer waits for
// something else than the processors, such as a registry, and holds up no other.
const newTime = time.Second

// creations bounds the creations in progress. Its methods return a release function.
type creations struct {
	all *limit.Shared
	// beside bounds the new creations of a tenant while others reports calls of other
	// tenants. nil: no such bound.
	beside *limit.Shared
	others func(tenant string) bool
}

// try takes the slots of a creation if they are free at once.
func (c *creations) try(tenant string) (release func(), ok bool) {
	bounded := c.besideOthers(tenant)
	if bounded && !c.beside.TryTake(tenant) {
		return nil, false
	}
	if !c.all.TryTake(tenant) {
		if bounded {
			c.beside.Release(tenant)
		}
		return nil, false
	}
	return c.begun(tenant, bounded), true
}

// take waits for the slots of a creation.
func (c *creations) take(ctx context.Context, tenant string) (release func(), err error) {
	bounded := c.besideOthers(tenant)
	if bounded {
		if err := c.beside.Take(ctx, tenant); err != nil {
			return nil, err
		}
	}
	if err := c.all.Take(ctx, tenant); err != nil {
		if bounded {
			c.beside.Release(tenant)
		}
		return nil, err
	}
	return c.begun(tenant, bounded), nil
}

func (c *creations) besideOthers(tenant string) bool { return c.beside != nil && c.others(tenant) }

func (c *creations) begun(tenant string, bounded bool) (release func()) {
	if !bounded {
		return func() { c.all.Release(tenant) }
	}
	old := sync.OnceFunc(func() { c.beside.Release(tenant) })
	timer := time.AfterFunc(newTime, old)
	return func() {
		timer.Stop()
		old()
		c.all.Release(tenant)
	}
}
