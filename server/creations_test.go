package server

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandgate/sandgate/server/limit"
)

func newCreations(others *bool) *creations {
	return &creations{all: limit.NewShared(16, true), beside: limit.NewDivided(16, besideParts), others: func(string) bool { return *others }}
}

func TestATenantBesideOthersCreatesOneAtATime(t *testing.T) {
	others := true
	c := newCreations(&others)
	release, ok := c.try("a")
	if !ok {
		t.Fatal("the first creation got no slot")
	}
	if _, ok := c.try("a"); ok {
		t.Error("a second creation began beside other tenants")
	}
	other, ok := c.try("b")
	if !ok {
		t.Fatal("another tenant got no slot")
	}
	waited, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the caller gave up")
	cancel(why)
	if _, err := c.take(waited, "a"); !errors.Is(err, why) {
		t.Errorf("a creation that waited: %v", err)
	}
	release()
	other()
	if release, ok = c.try("a"); !ok {
		t.Fatal("the slot was not given back")
	}
	release()
}

func TestATenantAloneHasAQuarterOfTheCreations(t *testing.T) {
	others := false
	c := newCreations(&others)
	var held []func()
	for range 4 {
		release, ok := c.try("a")
		if !ok {
			t.Fatal("a tenant alone got less than a quarter")
		}
		held = append(held, release)
	}
	if _, ok := c.try("a"); ok {
		t.Error("a tenant alone got more than a quarter")
	}
	// What began without the bound gives nothing back to it.
	others = true
	for _, release := range held {
		release()
	}
	release, ok := c.try("a")
	if !ok {
		t.Fatal("no slot is left")
	}
	if _, ok := c.try("a"); ok {
		t.Error("two creations began beside other tenants")
	}
	release()
}

// A creation that takes long, for instance because it pulls an image, holds up no other
// for longer than newTime, and all of them stay within a quarter.
func TestASlowCreationHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		others := true
		c := newCreations(&others)
		begun := time.Now()
		var held []func()
		for i := range 4 {
			release, err := c.take(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, release)
			if waited, want := time.Since(begun), time.Duration(i)*newTime; waited != want {
				t.Errorf("creation %d began after %v, not %v", i, waited, want)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := c.take(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a fifth creation: %v", err)
		}
		for _, release := range held {
			release()
		}
		release, ok := c.try("a")
		if !ok {
			t.Fatal("no slot is left")
		}
		release()
	})
}
