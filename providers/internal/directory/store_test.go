package directory

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/lock"
	"github.com/sandgate/sandgate/providers/internal/pool"
	"github.com/sandgate/sandgate/providers/internal/record"
)

type testRecord struct{ Base }

// machine is a substrate whose containers outlive the server.
type machine struct {
	mu         sync.Mutex
	containers map[string]bool // true: it runs
	decided    string          // the incarnation that must be removed
}

func (m *machine) set(name string, runs bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.containers[name] = runs
}

func (m *machine) runs(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.containers[name]
}

func (m *machine) names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []string
	for name := range m.containers {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

func (m *machine) conn() net.Conn {
	a, b := net.Pipe()
	_ = b.Close()
	return a
}

func (m *machine) Build(ctx context.Context, n *New[*testRecord]) (*testRecord, net.Conn, error) {
	return n.Make(ctx, &testRecord{Base: n.Base}, func() (net.Conn, error) {
		m.set(n.Container, true)
		return m.conn(), nil
	})
}

func (m *machine) Open(_ context.Context, _ Dir, r *testRecord) (net.Conn, error) {
	if !m.runs(r.Container) {
		return nil, errors.New("it does not run")
	}
	return m.conn(), nil
}

func (m *machine) Connect(ctx context.Context, d Dir, r *testRecord) (net.Conn, error) {
	return m.Open(ctx, d, r)
}

func (m *machine) Destroy(_ context.Context, _ *lock.Lock, d Dir, container string, _ *testRecord) error {
	m.mu.Lock()
	delete(m.containers, container)
	m.mu.Unlock()
	return os.RemoveAll(string(d))
}

func (m *machine) Info(name string, r *testRecord) providers.Info { return r.Info(name) }

func (m *machine) Observe(_ context.Context, name string, r *testRecord) (providers.Info, error) {
	out := r.Info(name)
	if r.Phase == Active {
		out.State = providers.StateFailed
		if m.runs(r.Container) {
			out.State = providers.StateActive
		}
	}
	return out, nil
}

func (m *machine) Alive(context.Context) func(string, *testRecord) (bool, error) {
	return func(_ string, r *testRecord) (bool, error) { return m.runs(r.Container), nil }
}

func (m *machine) Removal(_, incarnation string) (decided bool, failure string) {
	return m.decided != "" && m.decided == incarnation, ""
}

func open(t *testing.T, m *machine, l Layout, fault func(context.Context, string) error) *Store[*testRecord] {
	t.Helper()
	if err := l.Make(); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	s := NewStore(m, Config[*testRecord]{
		Layout: l, Locks: lock.NewTable(l.Locks()), Log: log, Prefix: "pool.", Fault: fault,
		Read: func(d Dir) (*testRecord, error) { return record.Read[testRecord](d.Record()) },
		Pool: pool.Config{Log: log, Check: pool.CheckTemplate, Interval: time.Millisecond},
	})
	t.Cleanup(s.Close)
	return s
}

func testSpec(id string) providers.Spec {
	return providers.Spec{ID: id, Hash: "of " + id, Template: "t"}
}

func create(t *testing.T, s *Store[*testRecord], name string) providers.Info {
	t.Helper()
	info, conn, err := s.Create(t.Context(), name, testSpec(name))
	if err != nil {
		t.Fatal(err)
	}
	if conn != nil {
		_ = conn.Close()
	}
	return info
}

// addMember starts a member of the pool by hand, so that no controller looks at it.
func addMember(t *testing.T, s *Store[*testRecord], name string) {
	t.Helper()
	if err := (poolDriver[*testRecord]{s}).Start(t.Context(), providers.Pool{Template: "t", Target: 9, Spec: testSpec("")}, name); err != nil {
		t.Fatal(err)
	}
}

// A server that is killed before any step leaves what the next one removes, or a whole
// sandbox: no container without a record, and none twice.
func TestServerKilledBeforeAnyStepLeavesNothingHalfMade(t *testing.T) {
	for _, step := range []string{"make its directory", "write its record", "record that it is ready", "record the claim", "move the claim"} {
		t.Run(step, func(t *testing.T) {
			m, l := &machine{containers: make(map[string]bool)}, Layout(t.TempDir())
			s := open(t, m, l, nil)
			create(t, s, "neighbour")
			if step == "record the claim" || step == "move the claim" {
				addMember(t, s, "m")
			}
			killed := open(t, m, l, func(_ context.Context, at string) error {
				if at == step {
					panic("killed")
				}
				return nil
			})
			func() {
				defer func() {
					if recover() == nil {
						t.Error("it was never there")
					}
				}()
				_, _, _ = killed.Create(t.Context(), "victim", testSpec("victim"))
			}()
			next := open(t, m, l, nil)
			if err := next.Sweep(t.Context()); err != nil {
				t.Error(err)
			}
			want := []string{"neighbour"}
			if step == "record the claim" { // nothing had happened yet
				want = append(want, "pool.t.m")
			}
			if got := m.names(); !slices.Equal(got, want) {
				t.Errorf("containers %v, want %v", got, want)
			}
			if info := create(t, next, "victim"); !info.Created || info.State != providers.StateActive {
				t.Errorf("afterwards: %+v", info)
			}
		})
	}
}

// Sweep removes members that have ended, and nothing that is claimed or whose lock is
// held.
func TestSweepRemovesEndedMembersOnly(t *testing.T) {
	m, l := &machine{containers: make(map[string]bool)}, Layout(t.TempDir())
	s := open(t, m, l, nil)
	addMember(t, s, "claimed")
	if info := create(t, s, "a"); !info.FromPool {
		t.Fatalf("it was not claimed: %+v", info)
	}
	addMember(t, s, "ready")
	addMember(t, s, "ended")
	m.set("pool.t.ended", false)
	for _, name := range []string{"held", "empty"} {
		if err := os.Mkdir(string(l.Sandbox(name)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	held, err := s.Locks.Acquire(t.Context(), "held")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release(true)
	if err := s.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if got, want := m.names(), []string{"pool.t.claimed", "pool.t.ready"}; !slices.Equal(got, want) {
		t.Errorf("containers %v, want %v", got, want)
	}
	if names, err := l.Names(); err != nil || !slices.Equal(names, []string{"a", "held"}) {
		t.Errorf("sandboxes %v, %v", names, err)
	}
}

// A sandbox can be deleted whose record cannot be read, or that has none.
func TestDeleteNeedsNoReadableRecord(t *testing.T) {
	m, l := &machine{containers: make(map[string]bool)}, Layout(t.TempDir())
	s := open(t, m, l, nil)
	info := create(t, s, "a")
	if err := s.Delete(t.Context(), "a", providers.Condition{Incarnation: "another"}); !errors.Is(err, providers.ErrReplaced) {
		t.Errorf("of another incarnation: %v", err)
	}
	if err := os.WriteFile(l.Sandbox("a").Record(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Get(t.Context(), "a"); err != nil || got.State != providers.StateFailed {
		t.Errorf("with a corrupt record: %+v, %v", got, err)
	}
	if err := s.Delete(t.Context(), "a", providers.Condition{Incarnation: info.Incarnation}); err != nil {
		t.Errorf("with a corrupt record: %v", err)
	}
	if err := s.Delete(t.Context(), "a", providers.Condition{}); !errors.Is(err, providers.ErrNotFound) {
		t.Errorf("again: %v", err)
	}
	if err := os.Mkdir(string(l.Sandbox("half")), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), "half", providers.Condition{}); !errors.Is(err, providers.ErrNotFound) || l.Sandbox("half").Exists() {
		t.Errorf("of a half-made one: %v", err)
	}
	if got := m.names(); len(got) != 0 {
		t.Errorf("containers %v", got)
	}
}

// A sandbox stays whose record cannot be read for a moment.
func TestSandboxStaysWhileItsRecordCannotBeRead(t *testing.T) {
	m, l := &machine{containers: make(map[string]bool)}, Layout(t.TempDir())
	s := open(t, m, l, nil)
	create(t, s, "a")
	read := s.Read
	s.Read = func(Dir) (*testRecord, error) { return nil, syscall.EMFILE }
	if info, err := s.Get(t.Context(), "a"); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("read: %+v, %v", info, err)
	}
	if _, _, err := s.Create(t.Context(), "a", testSpec("a")); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("created again: %v", err)
	}
	if err := s.Delete(t.Context(), "a", providers.Condition{Incarnation: "another"}); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("deleted: %v", err)
	}
	if err := s.Sweep(t.Context()); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("swept: %v", err)
	}
	s.Read = read
	if info := create(t, s, "a"); info.Created || info.State != providers.StateActive {
		t.Errorf("afterwards: %+v", info)
	}
}

// The decision to remove a sandbox does not count for the next one of its name.
func TestDecidedRemovalDoesNotCountForTheNextSandbox(t *testing.T) {
	m, l := &machine{containers: make(map[string]bool)}, Layout(t.TempDir())
	s := open(t, m, l, nil)
	m.decided = create(t, s, "a").Incarnation
	another := open(t, &machine{containers: m.containers}, l, nil)
	if err := another.Delete(t.Context(), "a", providers.Condition{}); err != nil {
		t.Fatal(err)
	}
	next := create(t, another, "a")
	if outcome, err := s.Settle(t.Context(), l.Sandbox("a")); outcome != Kept || err != nil || !m.runs("a") {
		t.Errorf("the next one: %v, %v", outcome, err)
	}
	m.decided = next.Incarnation
	if outcome, err := s.Settle(t.Context(), l.Sandbox("a")); outcome != Removed || err != nil {
		t.Errorf("afterwards: %v, %v", outcome, err)
	}
}
