package server

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
)

// leaping is a world whose clocks the test sets.
func leaping(t *testing.T) (*world, *fakeClock) {
	t.Helper()
	f := newFakeClock()
	w := newWorld(t, func(c *Config) {
		c.readClock, c.Provider = f.read, unled{c.Provider.(*memory)}
	})
	return w, f
}

func (w *world) reap() {
	w.t.Helper()
	if err := w.server.reapAll(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// A wall clock that is set forward ends no lifetime, of whatever kind, and none
// ends early or much later than it should.
func TestAClockThatLeapsDeletesNothing(t *testing.T) {
	w, f := leaping(t)
	w.createFor("idle", time.Hour)
	_, err := w.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{
		SandboxId: "aged", Ttl: durationpb.New(2 * time.Hour), IdleTtl: durationpb.New(0),
	})
	if err != nil {
		t.Fatal(err)
	}
	wall, _ := f.read()
	for _, id := range []string{"idle", "aged"} {
		w.place(id).agent.lastActive.Store(wall.UnixNano())
	}
	f.pass(time.Minute)
	f.set(25 * time.Hour)
	w.reap()
	if w.gone("idle") || w.gone("aged") {
		t.Fatal("a leap of 25 hours deleted a sandbox")
	}
	if err := w.stat("aged"); err != nil {
		t.Errorf("a call is refused after a leap: %v", err)
	}
	resp, err := w.client.CleanupSandboxes(t.Context(), &sandboxv1.CleanupSandboxesRequest{})
	if err != nil || len(resp.GetDeletedSandboxIds()) > 0 {
		t.Errorf("cleanup: %v, %v", resp, err)
	}
	// A server that has not seen the leap spares the idle one too.
	p := w.place("idle")
	w.provider.mu.Lock()
	last := p.info.LastActivity
	w.provider.mu.Unlock()
	if now, _ := f.read(); now.Sub(last) > 2*time.Minute {
		t.Errorf("the record says that it was idle for %v", now.Sub(last))
	}
	f.pass(61 * time.Minute)
	w.reap()
	if !w.gone("idle") || w.gone("aged") {
		t.Error("after an hour the idle one is to be gone, and no other")
	}
	f.pass(61 * time.Minute)
	w.reap()
	if !w.gone("aged") {
		t.Error("after two hours the other is still there")
	}
}

// A server that starts finds much that is long overdue: it waits, in case its
// clock is wrong, and then deletes a share in each round.
func TestWhatIsLongOverdueGoesLittleByLittle(t *testing.T) {
	w, f := leaping(t)
	const many = 25
	wall, _ := f.read()
	for i := range many {
		id := fmt.Sprintf("old-%02d", i)
		w.createFor(id, time.Hour)
		w.age(id, 26*time.Hour)
		w.place(id).agent.lastActive.Store(wall.Add(-26 * time.Hour).UnixNano())
	}
	w.createFor("due", time.Hour)
	w.age("due", 61*time.Minute)
	w.place("due").agent.lastActive.Store(wall.Add(-61 * time.Minute).UnixNano())
	w.reap()
	if n := w.count(); n != many || !w.gone("due") {
		t.Errorf("after the start %d are left, want %d: all but what is just due", n, many)
	}
	f.pass(lateWait)
	for _, want := range []int{many - lateLeast, many - 2*lateLeast, 0} {
		w.reap()
		if n := w.count(); n != want {
			t.Errorf("%d are left, want %d", n, want)
		}
	}
}

func TestBacklogShare(t *testing.T) {
	for n, want := range map[int]int{0: 0, 3: 3, 50: 10, 500: 50, 20_000: lateMost} {
		var b backlog
		for range n {
			b.add(providers.Info{})
		}
		if got := len(b.share(lateWait)); got != want {
			t.Errorf("of %d a round deletes %d, want %d", n, got, want)
		}
		if got := len(b.share(lateWait - 1)); got != 0 {
			t.Errorf("of %d a server that has just started deletes %d", n, got)
		}
	}
}
