package quota

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/sandgate/sandgate/providers"
)

// 200 creations at once over three servers and a ledger with conflicts: as many
// succeed as may.
func TestQuotaIsExactOverThreeServers(t *testing.T) {
	const limit, calls = 50, 200
	s := newSubstrate()
	s.conflicts = func() bool { return rand.N(4) == 0 }
	var books []*Book
	for range 3 {
		books = append(books, newBook(s, Config{Tenant: Limits{MaxSandboxes: limit}}))
	}
	var made, refused atomic.Int32
	var work sync.WaitGroup
	for i := range calls {
		work.Go(func() {
			switch err := create(t, s, books[i%3], fmt.Sprint("s-", i), specOf("one", "", 0)); {
			case err == nil:
				made.Add(1)
			case isBeyond(err, "max_sandboxes", "tenant"):
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	work.Wait()
	if made.Load() != limit || refused.Load() != calls-limit || s.most["one"] != limit {
		t.Errorf("%d made, %d refused, %d at once", made.Load(), refused.Load(), s.most["one"])
	}
	// A server that starts later counts the same.
	late := newBook(s, Config{Tenant: Limits{MaxSandboxes: limit}})
	if err := create(t, s, late, "more", specOf("one", "", 0)); !isBeyond(err, "max_sandboxes", "tenant") {
		t.Errorf("after a restart: %v", err)
	}
	if err := create(t, s, late, "other", specOf("two", "", 0)); err != nil {
		t.Errorf("another tenant: %v", err)
	}
}

// Whatever servers create, delete and give up, a quota holds at each moment; and once
// all is written, all of it can be used.
func TestQuotaHoldsAtEachMoment(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		limit := rapid.Int64Range(1, 4).Draw(rt, "limit")
		s := newSubstrate()
		config := Config{MaxSandboxes: limit + 1, Tenant: Limits{MaxSandboxes: limit}}
		// With so small a document, entries are taken out early and creations are refused.
		size := rapid.SampledFrom([]int{maxDocument, 500, 1000, 2000}).Draw(rt, "size of the document")
		start := func() *Book {
			b := newBook(s, config)
			b.maxDocument = size
			return b
		}
		books := []*Book{start(), start()}
		killed := false // Then reservations may be left.
		type under struct {
			book *Book
			name string
		}
		var pending []under
		spec := func(name string) providers.Spec { return specOf("tenant-"+name[:1], "", 0) }
		finish := func(p under, ok bool) {
			incarnation := ""
			if info, err := s.Get(t.Context(), p.name); err == nil {
				incarnation = info.Incarnation
			} else if ok {
				info, _, _ := s.Create(t.Context(), p.name, spec(p.name))
				incarnation = info.Incarnation
			}
			p.book.Settle(p.name, incarnation)
		}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			i := rapid.IntRange(0, 1).Draw(rt, "server")
			b := books[i]
			name := rapid.SampledFrom([]string{"a1", "a2", "a3", "a4", "a5", "b1", "b2", "b3"}).Draw(rt, "name")
			step := rapid.SampledFrom([]string{"reserve", "reserve", "succeed", "fail", "delete", "flush", "list", "reset", "restart", "kill"}).Draw(rt, "step")
			switch step {
			case "reserve":
				if err := b.Reserve(t.Context(), name, spec(name)); err == nil {
					pending = append(pending, under{b, name})
				}
			case "succeed", "fail":
				if len(pending) > 0 {
					k := rapid.IntRange(0, len(pending)-1).Draw(rt, "which")
					finish(pending[k], rapid.Bool().Draw(rt, "ok"))
					pending = slices.Delete(pending, k, k+1)
				}
			case "delete":
				remove(s, b, name)
			case "flush":
				b.Flush(t.Context(), slog.New(slog.DiscardHandler))
			case "list":
				b.listed = time.Now().Add(-time.Hour)
				if err := b.list(t.Context(), true); err != nil {
					rt.Fatal(err)
				}
			case "reset":
				// An operator who deletes the document while nothing is created.
				if len(pending) == 0 {
					s.document = nil
				}
			case "restart", "kill":
				if slices.ContainsFunc(pending, func(p under) bool { return p.book == b }) {
					break
				}
				if killed = killed || step == "kill"; step == "restart" {
					b.Flush(t.Context(), slog.New(slog.DiscardHandler))
				}
				books[i] = start()
			}
			for tenant, most := range map[string]int64{"": limit + 1, "tenant-a": limit, "tenant-b": limit} {
				if n := s.count(tenant); int64(n) > most {
					rt.Fatalf("%q has %d of %d", tenant, n, most)
				}
			}
		}
		for _, p := range pending {
			finish(p, false)
		}
		for _, b := range books {
			b.Flush(t.Context(), slog.New(slog.DiscardHandler))
		}
		room := limit - int64(s.count("tenant-a"))
		room = min(room, limit+1-int64(s.count("")))
		books[0].maxDocument = maxDocument
		for i := range room {
			if killed {
				break
			}
			books[0].listed = time.Time{}
			if err := create(t, s, books[0], fmt.Sprint("a-more-", i), spec("a")); err != nil {
				rt.Fatalf("room for %d, and the %dth: %v; %s", room, i+1, err, s.document)
			}
		}
	})
}

func TestSums(t *testing.T) {
	s := newSubstrate()
	b := newBook(s, Config{
		Tenant: Limits{MaxMemoryBytes: 100}, Principal: Limits{MaxMemoryBytes: 60},
		Overrides: map[Owner]Limits{{"one", "greedy"}: {MaxMemoryBytes: 200}},
	})
	for i, c := range []struct {
		principal string
		memory    int64
		scope     string // empty: it fits
		never     bool
	}{
		{"a", 61, "principal", true}, {"a", 40, "", false}, {"a", 30, "principal", false}, {"b", 50, "", false},
		{"", 20, "tenant", false}, {"greedy", 20, "tenant", false}, {"greedy", 0, "tenant", true}, {"greedy", 10, "", false},
	} {
		err := create(t, s, b, fmt.Sprint("s-", i), specOf("one", c.principal, c.memory))
		if c.scope == "" {
			if err != nil {
				t.Errorf("%d: %v", i, err)
			}
			continue
		}
		var e *Exceeded
		if !isBeyond(err, "max_memory_bytes", c.scope) || !errors.As(err, &e) || e.Never != c.never {
			t.Errorf("%d: %v", i, err)
		}
	}
	all, err := b.Status(t.Context(), Owner{"one", "a"}, NewStreams(Config{}))
	if err != nil || len(all) != 2 || all[0].Used != 100 || all[1].Used != 40 || all[1].Limit != 60 {
		t.Errorf("%+v %v", all, err)
	}
}

// The rate of creations holds over servers and restarts, and does not count what
// exists.
func TestCreationRateHoldsOverServersAndRestarts(t *testing.T) {
	s := newSubstrate()
	config := Config{Principal: Limits{CreationsPerMinute: 3}}
	one, two := newBook(s, config), newBook(s, config)
	spec := specOf("t", "p", 0)
	for i, b := range []*Book{one, two, one} {
		name := fmt.Sprint("s-", i)
		if err := create(t, s, b, name, spec); err != nil {
			t.Fatal(err)
		}
		if err := create(t, s, two, name, spec); err != nil {
			t.Fatalf("again: %v", err)
		}
	}
	for _, b := range []*Book{one, two, newBook(s, config)} {
		err := create(t, s, b, "more", spec)
		var e *Exceeded
		if !isBeyond(err, "creations_per_minute", "principal") || !errors.As(err, &e) || e.RetryAfter <= 0 || e.RetryAfter > 20*time.Second {
			t.Errorf("%v", err)
		}
	}
	if err := create(t, s, one, "other", specOf("t", "q", 0)); err != nil {
		t.Errorf("another principal: %v", err)
	}
}

// A clock that was an hour ahead left an empty bucket from then. Once it is right, the
// bucket fills within the time that the rejection states. A server that is a little ahead
// of another gives it no more than there is.
func TestCreationRateAfterTheClockWasSetBack(t *testing.T) {
	for ahead, most := range map[time.Duration]time.Duration{time.Hour: 20 * time.Second, 30 * time.Second: 50 * time.Second} {
		t.Run(ahead.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSubstrate()
				owner, spec := Owner{"t", "p"}, specOf("t", "p", 0)
				var err error
				s.document, err = json.Marshal(&document{Seq: 1, Buckets: map[string]*bucket{bucketKey(owner): {At: time.Now().Add(ahead)}}})
				if err != nil {
					t.Fatal(err)
				}
				b := newBook(s, Config{Principal: Limits{CreationsPerMinute: 3}})
				began := time.Now()
				for {
					err := create(t, s, b, "a", spec)
					took := time.Since(began)
					if err == nil && (took < most-time.Second || took > most) {
						t.Errorf("the next creation was admitted after %v, want %v", took, most)
					}
					if err == nil {
						return
					}
					if !isBeyond(err, "creations_per_minute", "principal") || took > most {
						t.Fatalf("after %v: %v", took, err)
					}
					time.Sleep(time.Second)
				}
			})
		})
	}
}

// One listing suffices for many creations, also where servers alternate.
func TestOneListingSufficesForManyCreations(t *testing.T) {
	s := newSubstrate()
	config := Config{MaxSandboxes: 1000}
	books := []*Book{newBook(s, config), newBook(s, config)}
	for i := range 100 {
		if err := create(t, s, books[i%2], fmt.Sprint("s-", i), specOf("t", "", 0)); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.lists.Load(); n != 2 {
		t.Errorf("%d listings", n)
	}
}

// A reservation whose caller gave up is none.
func TestCancelledReservationDoesNotCount(t *testing.T) {
	s := newSubstrate()
	b := newBook(s, Config{MaxSandboxes: 1})
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("gone")
	s.conflicts = func() bool { cancel(why); return true }
	if err := b.Reserve(ctx, "a", specOf("t", "", 0)); !errors.Is(err, why) {
		t.Fatal(err)
	}
	s.conflicts = nil
	if err := create(t, s, b, "b", specOf("t", "", 0)); err != nil {
		t.Error(err)
	}
}

// A creation whose caller gives up while another call writes its reservation leaves
// nothing that counts.
func TestReservationCancelledDuringAWriteDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSubstrate()
		b := newBook(s, Config{MaxSandboxes: 1})
		if err := b.list(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		if err := b.writing.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error)
		go func() { left <- b.Reserve(ctx, "a", specOf("one", "", 0)) }()
		synctest.Wait() // It is in the queue.
		change := b.change
		b.change = func(ctx context.Context, f func([]byte) ([]byte, error)) error {
			err := change(ctx, f)
			cancel()
			if err := <-left; !errors.Is(err, context.Canceled) {
				t.Errorf("it gave up with %v", err)
			}
			return err
		}
		if err := b.write(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.change = change
		b.writing.Release()
		if err := create(t, s, b, "b", specOf("one", "", 0)); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}

// What is settled while the document is written is written next.
func TestReservationSettledDuringAWriteIsWrittenNext(t *testing.T) {
	s := newSubstrate()
	b, other := newBook(s, Config{MaxSandboxes: 1}), newBook(s, Config{MaxSandboxes: 1})
	if err := b.Reserve(t.Context(), "a", specOf("one", "", 0)); err != nil {
		t.Fatal(err)
	}
	change := b.change
	b.change = func(ctx context.Context, f func([]byte) ([]byte, error)) error {
		err := change(ctx, f)
		b.Settle("a", "")
		return err
	}
	if err := b.write(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.change = change
	b.Flush(t.Context(), slog.New(slog.DiscardHandler))
	if err := create(t, s, other, "b", specOf("one", "", 0)); err != nil {
		t.Errorf("another server: %v", err)
	}
}

// A sandbox counts whose server died after its creation, and whose entry expired before
// others read it.
func TestSandboxOfAnExpiredEntryCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSubstrate()
		b, dies := newBook(s, Config{MaxSandboxes: 1}), newBook(s, Config{MaxSandboxes: 1})
		if err := b.list(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		if err := create(t, s, dies, "a", specOf("one", "", 0)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(dies.hold + time.Second) // of the bubble
		if err := create(t, s, b, "b", specOf("one", "", 0)); !isBeyond(err, "max_sandboxes", "server") {
			t.Errorf("another server: %v", err)
		}
	})
}

// New quotas apply to the next creation, and to sandboxes that nobody counted
// before.
func TestNewQuotasApplyToTheNextCreation(t *testing.T) {
	s := newSubstrate()
	b := newBook(s, Config{})
	for i := range 3 {
		if err := create(t, s, b, fmt.Sprint("s-", i), specOf("t", "", 0)); err != nil {
			t.Fatal(err)
		}
	}
	b.Configure(Config{MaxSandboxes: 3})
	if err := create(t, s, b, "more", specOf("t", "", 0)); !isBeyond(err, "max_sandboxes", "server") {
		t.Errorf("a smaller quota: %v", err)
	}
	b.Configure(Config{MaxSandboxes: 4})
	if err := create(t, s, b, "more", specOf("t", "", 0)); err != nil {
		t.Errorf("a greater one: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"seq":3,"servers":{"a":{"x":{"tenant":"t","added":1}}},"buckets":{"[\"t\",\"\"]":{"tokens":1}}}`))
	f.Add([]byte(`{"servers":{"a":null},"buckets":{"x":null}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		s := newSubstrate()
		s.document = raw
		b := newBook(s, Config{Tenant: Limits{MaxSandboxes: 1 << 40, CreationsPerMinute: 10}})
		// Any document leaves a server that works.
		_ = b.Reserve(t.Context(), "a", specOf("t", "", 0))
		b.Settle("a", "")
	})
}
