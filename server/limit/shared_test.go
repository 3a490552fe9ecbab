package limit

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A tenant with a long queue of creations delays no other tenant's.
func TestOneTenantsQueueDelaysNoOther(t *testing.T) {
	c := NewShared(8, true)
	for range 2 {
		if !c.TryTake("a") {
			t.Fatal("a tenant does not get a quarter of the slots")
		}
	}
	if c.TryTake("a") {
		t.Error("a tenant gets more than a quarter of the slots")
	}
	gaveUp, cancel := context.WithCancelCause(t.Context())
	queue := make(chan error, 20)
	for range cap(queue) {
		go func() { queue <- c.Take(gaveUp, "a") }()
	}
	for _, tenant := range []string{"b", "c", "d"} {
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			if err := c.Take(ctx, tenant); err != nil {
				t.Errorf("tenant %s waits for another: %v", tenant, err)
			}
			cancel()
		}
	}
	if c.TryTake("e") {
		t.Error("there are more slots than 8")
	}
	why := errors.New("the caller gave up")
	cancel(why)
	for range cap(queue) {
		if err := <-queue; !errors.Is(err, why) {
			t.Errorf("a creation that waited: %v", err)
		}
	}
	for _, tenant := range []string{"a", "b", "c", "d"} {
		c.Release(tenant)
		c.Release(tenant)
	}
	if len(c.tenants) > 0 || len(c.all) > 0 {
		t.Errorf("%d tenants and %d slots are left", len(c.tenants), len(c.all))
	}
}

// Without tenants one caller may hold all slots.
func TestWithoutTenantsOneCallerMayHoldAllSlots(t *testing.T) {
	c := NewShared(8, false)
	for range 8 {
		if !c.TryTake("default") {
			t.Fatal("8 slots were expected")
		}
	}
	if small := NewShared(2, true); !small.TryTake("a") {
		t.Error("a tenant has no slot")
	}
}
