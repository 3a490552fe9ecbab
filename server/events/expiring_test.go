package events

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandgate/sandgate/providers"
)

// short is a sandbox of a short lifetime.
type short struct {
	name    string
	idleTTL bool
	life    time.Duration
	created time.Duration // since the begin
	// every is how often it is used, for uses times.
	every time.Duration
	uses  int
}

// fleet runs an Observer beside sandboxes that are used, and deleted at their end, at
// the moments of a fake clock.
type fleet struct {
	*site
	used   map[string]time.Time // when a sandbox was used last, by its agent
	events map[string][]Event
}

const interval = 15 * time.Second

// live runs a sandbox to its end. The reaper finds that up to an interval late.
func (f *fleet) live(c short, late time.Duration) {
	time.Sleep(c.created)
	info := providers.Info{
		Name: c.name, Incarnation: "i", State: providers.StateActive, CreateTime: time.Now(), LastActivity: time.Now(),
		Spec: providers.Spec{Tenant: "t", ID: c.name, TTL: c.life},
	}
	if c.idleTTL {
		info.Spec.TTL, info.Spec.IdleTTL = 0, c.life
	}
	set := func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		// The record is a quarter of the idle TTL old at most.
		if used := time.Now(); used.Sub(info.LastActivity) >= c.life/4 {
			info.LastActivity = used
		}
		f.used[c.name], f.all[c.name] = time.Now(), info
	}
	set()
	f.journal.Note(New(Created, info, ""))
	for range c.uses {
		time.Sleep(c.every)
		set()
	}
	time.Sleep(c.life + late)
	f.mu.Lock()
	delete(f.all, c.name)
	f.mu.Unlock()
	f.journal.Note(New(Ended, info, ExpiresBy(info)))
}

// run runs sandboxes with their warnings, and returns the events of each.
func run(t *testing.T, sandboxes []short, late time.Duration) map[string][]Event {
	f := &fleet{
		site: &site{t: t, substrate: &substrate{all: make(map[string]providers.Info)}, documents: newShared()},
		used: make(map[string]time.Time), events: make(map[string][]Event),
	}
	f.journal = f.documents.journal(t)
	f.observer = NewObserver(ObserverConfig{
		Journal: f.journal, Change: f.documents.change, Provider: f.substrate, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Interval: interval, Left: func(info providers.Info) time.Duration { return time.Until(info.ExpireTime()) },
		Idle: func(_ context.Context, info providers.Info, idle time.Duration) (bool, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return time.Since(f.used[info.Name]) >= idle, nil
		},
		OnFailure: func() { t.Error("a round failed") },
	})
	reader := f.journal.mustRead(t, "")
	ctx, cancel := context.WithCancel(t.Context())
	defer synctest.Wait()
	defer cancel()
	go f.journal.Run(ctx)
	go f.observer.Run(ctx)
	for _, c := range sandboxes {
		go f.live(c, late)
	}
	for ended := 0; ended < len(sandboxes); {
		more, err := reader.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range more {
			f.events[e.SandboxID] = append(f.events[e.SandboxID], e)
			if e.Type == Ended {
				ended++
			}
		}
	}
	time.Sleep(10 * interval)
	for _, e := range reader.rest(t) {
		t.Errorf("%s %s after the end", e.SandboxID, e.Type)
	}
	return f.events
}

// A sandbox whose lifetime is at least two intervals is reported as expiring before its
// end, and a shorter one perhaps: once, and never after the end, whenever it was created.
func TestExpiringOfShortLifetimes(t *testing.T) {
	for _, late := range []time.Duration{time.Millisecond, interval} {
		synctest.Test(t, func(t *testing.T) {
			var all []short
			for _, life := range []time.Duration{1, 3, 7, 15, 20, 29, 31, 40, 60, 90, 240} {
				for created := range 15 {
					for _, idle := range []bool{false, true} {
						all = append(all, short{
							name: fmt.Sprintf("%d-%d-%t", life, created, idle), idleTTL: idle, life: life * time.Second,
							created: time.Duration(created)*time.Second + 500*time.Millisecond,
						})
					}
				}
			}
			events, warned, tiny := run(t, all, late), 0, 0
			for _, c := range all {
				got := events[c.name]
				switch {
				case c.life < 2*interval && ids(got) == ids([]Event{got[0], {SandboxID: c.name, Type: Ended}}):
					tiny++
				case ids(got) != fmt.Sprintf("%s created\n%s expiring\n%s ended\n", c.name, c.name, c.name):
					t.Errorf("ended %v late: %q", late, ids(got))
				case got[1].ExpireTime.Sub(got[1].Time) <= 0:
					t.Errorf("%s: %v before its end", c.name, got[1].ExpireTime.Sub(got[1].Time))
				case c.life >= 4*interval && got[1].ExpireTime.Sub(got[1].Time) < 2*interval:
					t.Errorf("%s: only %v before its end", c.name, got[1].ExpireTime.Sub(got[1].Time))
				default:
					warned++
				}
			}
			t.Logf("%d with a warning, %d of less than two intervals without", warned, tiny)
		})
	}
}

// A sandbox that is used again and again is reported as expiring when that ends, and not
// after each use.
func TestExpiringIsNoFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []short
		for _, life := range []time.Duration{4, 10, 16, 32, 60, 200} {
			for created := range 5 {
				all = append(all, short{
					name: fmt.Sprintf("%d-%d", life, created), idleTTL: true, life: life * time.Second,
					created: 3*time.Duration(created)*time.Second + 500*time.Millisecond,
					every:   life * time.Second / 5, uses: 30,
				})
			}
		}
		events := run(t, all, interval)
		for _, c := range all {
			got := events[c.name]
			if len(got) > 3 || c.life >= 2*interval && len(got) != 3 {
				t.Errorf("%s, used every %v: %q", c.name, c.every, ids(got))
			}
		}
	})
}
