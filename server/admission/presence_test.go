package admission

import (
	"testing"
	"time"

	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/call"
)

func TestPresenceOfOtherTenants(t *testing.T) {
	p := presence{running: make(map[string]int)}
	now := time.Now()
	expect := func(when, tenant string, want bool) {
		t.Helper()
		if got := p.others(tenant, now); got != want {
			t.Errorf("%s: others than %s: %v, not %v", when, tenant, got, want)
		}
	}
	expect("at the start", "a", false)
	p.begin("a")
	p.begin("a")
	expect("with calls of a", "a", false)
	expect("with calls of a", "b", true)
	p.begin("b")
	now = now.Add(time.Hour)
	expect("during a long call of b", "a", true)
	p.end("b", now)
	expect("just after a call of b", "a", true)
	now = now.Add(presentTime / 2)
	p.end("a", now)
	p.end("a", now)
	expect("when a ended calls too", "a", true)
	expect("when a ended calls too", "b", true)
	now = now.Add(presentTime / 2)
	expect("a second after the call of b", "a", false)
	expect("half a second after the call of a", "b", true)
	expect("half a second after the call of a", "c", true)
	now = now.Add(presentTime / 2)
	expect("a second after the last call", "b", false)
	if len(p.running) > 0 {
		t.Errorf("left: %v", p.running)
	}
}

// A call that is registered or removed twice counts once.
func TestEachCallIsPresentOnce(t *testing.T) {
	r := newRunning()
	c := &call.Call{Principal: authn.Principal{Tenant: "b"}}
	for range 2 {
		r.add(c, func() error { return nil })
	}
	if !r.others("a") || r.others("b") {
		t.Error("one call of b is running")
	}
	for range 2 {
		r.remove(c)
	}
	if len(r.present.running) > 0 {
		t.Errorf("left: %v", r.present.running)
	}
}
