package quota

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/sandgate/sandgate/providers"
)

// substrate is a provider that only counts.
type substrate struct {
	providers.Provider
	mu        sync.Mutex
	sandboxes map[string]providers.Info
	most      map[string]int // at the same time, by tenant
	lists     atomic.Int32
	document  []byte
	conflicts func() bool // another process has changed the document: again
}

func newSubstrate() *substrate {
	return &substrate{sandboxes: make(map[string]providers.Info), most: make(map[string]int)}
}

func (s *substrate) ChangeLedger(ctx context.Context, _ string, change func([]byte) ([]byte, error)) error {
	for {
		s.mu.Lock()
		old := bytes.Clone(s.document)
		s.mu.Unlock()
		now, err := change(old)
		if err != nil || now == nil {
			return err
		}
		s.mu.Lock()
		done := bytes.Equal(old, s.document) && (s.conflicts == nil || !s.conflicts())
		if done {
			s.document = now
		}
		s.mu.Unlock()
		if done || ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

func (s *substrate) Get(_ context.Context, name string) (providers.Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	info, ok := s.sandboxes[name]
	if !ok {
		return info, providers.ErrNotFound
	}
	return info, nil
}

func (s *substrate) List(_ context.Context, _ providers.Query) (providers.Page, error) {
	s.lists.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	var page providers.Page
	for _, info := range s.sandboxes {
		page.Sandboxes = append(page.Sandboxes, info)
	}
	return page, nil
}

func (s *substrate) Create(_ context.Context, name string, spec providers.Spec) (providers.Info, net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	info, ok := s.sandboxes[name]
	if !ok {
		info = providers.Info{Name: name, Spec: spec, Incarnation: fmt.Sprint(rand.Int())}
		s.sandboxes[name] = info
	}
	for _, tenant := range []string{"", spec.Tenant} {
		s.most[tenant] = max(s.most[tenant], s.count(tenant))
	}
	return info, nil, nil
}

func (s *substrate) Delete(_ context.Context, name string, _ providers.Condition) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sandboxes, name)
	return nil
}

// count needs s.mu. Empty: all tenants'.
func (s *substrate) count(tenant string) int {
	n := 0
	for _, info := range s.sandboxes {
		if tenant == "" || info.Spec.Tenant == tenant {
			n++
		}
	}
	return n
}

func newBook(s *substrate, c Config) *Book { return NewBook(s, c, time.Minute) }

func specOf(tenant, principal string, memory int64) providers.Spec {
	return providers.Spec{Tenant: tenant, Principal: principal, Resources: providers.Resources{MemoryBytes: memory}}
}

// create creates a sandbox as the server does.
func create(t testing.TB, s *substrate, b *Book, name string, spec providers.Spec) error {
	t.Helper()
	if err := b.Reserve(t.Context(), name, spec); err != nil {
		return err
	}
	info, _, err := s.Create(t.Context(), name, spec)
	b.Settle(name, info.Incarnation)
	return err
}

func remove(s *substrate, b *Book, name string) {
	info, err := s.Get(context.Background(), name)
	if err == nil && s.Delete(context.Background(), name, providers.Condition{}) == nil {
		b.Forget(name, info.Incarnation)
	}
}

func isBeyond(err error, quota, scope string) bool {
	var e *Exceeded
	return errors.As(err, &e) && e.Quota == quota && e.Owner.Scope() == scope
}

// 200 creations at once over three servers and a ledger with conflicts: as many
// succeed as may.
func TestExactOverServers(t *testing.T) {
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
func TestNeverBeyond(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		limit := rapid.Int64Range(1, 4).Draw(rt, "limit")
		s := newSubstrate()
		config := Config{MaxSandboxes: limit + 1, Tenant: Limits{MaxSandboxes: limit}}
		books := []*Book{newBook(s, config), newBook(s, config)}
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
				books[i] = newBook(s, config)
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
func TestCreationRate(t *testing.T) {
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

// One listing suffices for many creations, also where servers alternate.
func TestFewListings(t *testing.T) {
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
func TestCancelled(t *testing.T) {
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
func TestCancelledWhileWritten(t *testing.T) {
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
func TestSettledWhileWritten(t *testing.T) {
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
func TestExpiredUnread(t *testing.T) {
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
func TestConfigure(t *testing.T) {
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

func TestStreams(t *testing.T) {
	s := NewStreams(Config{Tenant: Limits{MaxStreams: 2}, Principal: Limits{CommandsPerMinute: 2}})
	now := time.Now()
	s.now = func() time.Time { return now }
	a, b := Owner{"one", "a"}, Owner{"one", "b"}
	enter := func(o Owner) func() {
		t.Helper()
		leave, err := s.Enter(o, true)
		if err != nil {
			t.Fatal(err)
		}
		return leave
	}
	first, second := enter(a), enter(b)
	if _, err := s.Enter(b, false); !isBeyond(err, maxStreams, "tenant") {
		t.Errorf("a third stream: %v", err)
	}
	enter(Owner{"two", "a"})()
	first()
	enter(a)()
	if _, err := s.Enter(a, true); !isBeyond(err, commandsPerMinute, "principal") {
		t.Errorf("a third command: %v", err)
	}
	if used := s.used(a, commandsPerMinute); used != 2 {
		t.Errorf("used %d", used)
	}
	now = now.Add(30 * time.Second)
	enter(a)()
	second()
	now = now.Add(time.Hour)
	enter(a)()
	now = now.Add(time.Minute)
	enter(b)()
	if len(s.running) != 0 {
		t.Errorf("left: %v", s.running)
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
