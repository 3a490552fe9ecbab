package pool

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandgate/sandgate/providers"
)

// memory is a substrate on which a start takes a second.
type memory struct {
	mu      sync.Mutex
	members map[string]Member[string]
	failing bool
	// outcomes are the results of the first starts, each a second later than the
	// one before.
	outcomes []error
	starts   int
	listed   func() // called after each list
}

var (
	errNoRoom = errors.New("no room")
	errPanic  = errors.New("the driver panics")
)

func (m *memory) put(member Member[string]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	member.Value = member.Name
	m.members[member.Name] = member
}

func (m *memory) Start(ctx context.Context, p providers.Pool, name string) error {
	m.mu.Lock()
	takes, err := time.Second, error(nil)
	if m.failing {
		err = errNoRoom
	}
	if m.starts < len(m.outcomes) {
		takes, err = time.Duration(m.starts+1)*time.Second, m.outcomes[m.starts]
	}
	m.starts++
	m.mu.Unlock()
	m.put(Member[string]{Name: name, State: Starting, Created: time.Now()})
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	m.mu.Lock()
	delete(m.members, name)
	m.mu.Unlock()
	if errors.Is(err, errPanic) {
		panic(err)
	}
	if err != nil {
		return err
	}
	m.put(Member[string]{Name: name, State: Ready, Created: time.Now()})
	return nil
}

func (m *memory) Unclaimed(context.Context, *providers.Spec, bool) iter.Seq2[Member[string], error] {
	return func(yield func(Member[string], error) bool) {
		m.mu.Lock()
		var all []Member[string]
		for _, member := range m.members {
			all = append(all, member)
		}
		listed := m.listed
		m.mu.Unlock()
		if listed != nil {
			listed()
		}
		for _, member := range all {
			if !yield(member, nil) {
				return
			}
		}
	}
}

func (m *memory) Claim(_ context.Context, name string, to chan<- string) (net.Conn, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, there := m.members[name]; !there {
		return nil, nil
	}
	delete(m.members, name)
	to <- name
	here, _ := net.Pipe()
	return here, nil
}

func (m *memory) Drop(_ context.Context, member Member[string]) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.members, member.Name)
	return nil
}

func (m *memory) count(state State) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, member := range m.members {
		if member.State == state {
			n++
		}
	}
	return n
}

func (m *memory) started() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.starts
}

func (m *memory) names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.members))
}

func run(t *testing.T, config Config, test func(t *testing.T, m *memory, c *Controller[string, chan<- string])) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := &memory{members: map[string]Member[string]{}}
		config.Log, config.Check = slog.New(slog.DiscardHandler), func(providers.Pool) error { return nil }
		c := New(m, config)
		defer c.Close()
		test(t, m, c)
	})
}

func lead(ctx context.Context, _ providers.Pool, do func(context.Context)) { do(ctx) }

func pools(target int) []providers.Pool { return []providers.Pool{{Template: "t", Target: target}} }

func TestFillsInParallelAndRefills(t *testing.T) {
	run(t, Config{}, func(t *testing.T, m *memory, c *Controller[string, chan<- string]) {
		if err := c.Keep(t.Context(), pools(5)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1100 * time.Millisecond)
		if n := m.count(Ready); n != 5 || m.started() != 5 {
			t.Fatalf("%d ready after %d starts", n, m.started())
		}
		claimed := make(chan string, 10)
		for range 5 {
			if conn, err := c.Claim(t.Context(), providers.Spec{}, claimed); conn == nil || err != nil {
				t.Fatalf("claim: %v, %v", conn, err)
			}
		}
		if conn, err := c.Claim(t.Context(), providers.Spec{}, claimed); conn != nil || err != nil {
			t.Errorf("claim of an empty pool: %v, %v", conn, err)
		}
		time.Sleep(1100 * time.Millisecond)
		if n := m.count(Ready); n != 5 || m.started() != 10 {
			t.Errorf("refilled to %d with %d starts", n, m.started())
		}
	})
}

func TestStartsAreBounded(t *testing.T) {
	run(t, Config{Parallel: 1}, func(t *testing.T, m *memory, c *Controller[string, chan<- string]) {
		if err := c.Keep(t.Context(), pools(3)); err != nil {
			t.Fatal(err)
		}
		for want := 1; want <= 3; want++ {
			time.Sleep(1010 * time.Millisecond)
			if n := m.count(Ready); n != want {
				t.Errorf("%d ready, want %d", n, want)
			}
		}
	})
}

// Delays double, a batch that fails together counts once, and one start probes
// whether the next ones would succeed.
func TestFailedStartsBackOffAndProbe(t *testing.T) {
	run(t, Config{}, func(t *testing.T, m *memory, c *Controller[string, chan<- string]) {
		m.failing = true
		if err := c.Keep(t.Context(), pools(20)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		starts := m.started()
		m.mu.Lock()
		m.failing = false
		m.mu.Unlock()
		if starts < 20+3 || starts > 20+5 {
			t.Errorf("%d starts in half a minute of failures", starts)
		}
		time.Sleep(time.Minute)
		if n := m.count(Ready); n != 20 {
			t.Errorf("%d ready after the failures", n)
		}
	})
}

// Members that were started together fail before and after a success.
func TestFailureAfterSuccess(t *testing.T) {
	run(t, Config{}, func(t *testing.T, m *memory, c *Controller[string, chan<- string]) {
		m.outcomes = []error{errNoRoom, nil, errNoRoom}
		if err := c.Keep(t.Context(), pools(3)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if n := m.count(Ready); n != 3 {
			t.Errorf("%d ready after the failures", n)
		}
	})
}

// A driver that panics fails like one that returns an error.
func TestDriverThatPanicsCountsAsFailed(t *testing.T) {
	run(t, Config{}, func(t *testing.T, m *memory, c *Controller[string, chan<- string]) {
		m.outcomes = []error{errPanic}
		if err := c.Keep(t.Context(), pools(1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if n := m.count(Ready); n != 1 || m.started() != 2 {
			t.Errorf("%d ready after %d starts", n, m.started())
		}
	})
}

func TestDropsWhatIsNotNeeded(t *testing.T) {
	run(t, Config{Lead: lead}, func(t *testing.T, m *memory, c *Controller[string, chan<- string]) {
		begun := time.Now()
		for i := range 4 {
			m.put(Member[string]{Name: fmt.Sprint("ready", i), State: Ready, Created: begun})
		}
		m.put(Member[string]{Name: "stale", State: Stale})
		m.put(Member[string]{Name: "broken", State: Broken})
		if err := c.Keep(t.Context(), pools(2)); err != nil {
			t.Fatal(err)
		}
		if ready, stale, broken := m.count(Ready), m.count(Stale), m.count(Broken); ready != 2 || stale+broken != 0 {
			t.Errorf("%d ready, %d stale, %d broken", ready, stale, broken)
		}
		m.put(Member[string]{Name: "surplus", State: Ready, Created: begun.Add(time.Hour)})
		m.put(Member[string]{Name: "broken later", State: Broken})
		time.Sleep(3 * time.Second)
		if left := m.names(); len(left) != 2 || slices.Contains(left, "surplus") {
			t.Errorf("left: %v", left)
		}
		if err := c.Keep(t.Context(), nil); err != nil || len(m.names()) != 0 {
			t.Errorf("without pools: %v, %v", m.names(), err)
		}
		if _, err := c.Status(t.Context(), "t"); !errors.Is(err, providers.ErrNotFound) {
			t.Errorf("status of a pool that is not kept: %v", err)
		}
	})
}

// Another server starts a member for a kept pool while this one drains.
func TestDrainKeepsNewMember(t *testing.T) {
	run(t, Config{}, func(t *testing.T, m *memory, c *Controller[string, chan<- string]) {
		m.listed = sync.OnceFunc(func() { m.put(Member[string]{Name: "new", State: Ready}) })
		if err := c.Keep(t.Context(), pools(1)); err != nil || !slices.Contains(m.names(), "new") {
			t.Errorf("left: %v, %v", m.names(), err)
		}
	})
}

// What is left of pools that are not kept is deleted in the background if it
// cannot be deleted at once.
func TestDrainIsRetriedInTheBackground(t *testing.T) {
	results := make(chan error, 3)
	results <- errors.New("not now")
	results <- errors.New("not now")
	results <- nil
	config := Config{Drained: func(context.Context, []providers.Pool) error { return <-results }}
	run(t, config, func(t *testing.T, _ *memory, c *Controller[string, chan<- string]) {
		if err := c.Keep(t.Context(), nil); err != nil || len(results) != 2 {
			t.Errorf("%d left, %v", len(results), err)
		}
		time.Sleep(time.Minute)
		if len(results) != 0 {
			t.Errorf("not retried %d times", len(results))
		}
	})
}

// A leader drops a member that a former leader was starting. Without leaders the
// member belongs to another server.
func TestStartingMemberOfAnotherServer(t *testing.T) {
	for name, c := range map[string]struct {
		config Config
		left   int
	}{"leads": {Config{Lead: lead}, 0}, "all fill": {Config{}, 1}} {
		t.Run(name, func(t *testing.T) {
			run(t, c.config, func(t *testing.T, m *memory, control *Controller[string, chan<- string]) {
				m.put(Member[string]{Name: "theirs", State: Starting})
				if err := control.Keep(t.Context(), pools(1)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Second)
				if n := m.count(Starting); n != c.left {
					t.Errorf("%d are starting, want %d", n, c.left)
				}
			})
		})
	}
}

// Without leaders, servers may keep the same pool at different targets.
func TestMembersOfHigherTarget(t *testing.T) {
	run(t, Config{}, func(t *testing.T, m *memory, c *Controller[string, chan<- string]) {
		other := New(m, c.config)
		defer other.Close()
		if err := errors.Join(c.Keep(t.Context(), pools(1)), other.Keep(t.Context(), pools(3))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		// The first start of the two servers may overfill the pool once.
		if n, starts := m.count(Ready), m.started(); n < 3 || starts > 4 {
			t.Errorf("%d ready after %d starts", n, starts)
		}
	})
}

// A start under way ends with the pool.
func TestCloseEndsStartsUnderWay(t *testing.T) {
	run(t, Config{}, func(t *testing.T, m *memory, c *Controller[string, chan<- string]) {
		if err := c.Keep(t.Context(), pools(3)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		begun := time.Now()
		c.Close()
		if time.Since(begun) > 0 || m.count(Ready) != 0 {
			t.Errorf("closed after %v with %d ready", time.Since(begun), m.count(Ready))
		}
	})
}

func TestCheck(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		pools []providers.Pool
		check error
	}{
		"target": {pools: pools(0)},
		"twice":  {pools: append(pools(1), pools(1)...)},
		"driver": {pools: pools(1), check: broken},
	} {
		err := Check(c.pools, func(providers.Pool) error { return c.check })
		if !errors.Is(err, providers.ErrInvalid) || c.check != nil && !errors.Is(err, c.check) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
