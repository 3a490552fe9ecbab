package events

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandgate/sandgate/providers"
)

// substrate is a provider's list of sandboxes.
type substrate struct {
	providers.Provider

	mu     sync.Mutex
	all    map[string]providers.Info
	hidden map[string]bool // from List
	fail   error
}

func (p *substrate) List(_ context.Context, q providers.Query) (providers.Page, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	page := providers.Page{}
	for _, name := range slices.Sorted(maps.Keys(p.all)) {
		if name <= q.Token || p.hidden[name] {
			continue
		}
		if len(page.Sandboxes) == 2 { // less than asked for
			page.Next = page.Sandboxes[1].Name
			break
		}
		page.Sandboxes = append(page.Sandboxes, p.all[name])
	}
	return page, p.fail
}

func (p *substrate) Get(_ context.Context, name string) (providers.Info, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	info, ok := p.all[name]
	if !ok {
		return info, providers.ErrNotFound
	}
	return info, p.fail
}

// site is a substrate with its documents and one server after the other.
type site struct {
	t *testing.T
	*substrate
	documents *shared
	segments  uint64
	journal   *Journal
	observer  *Observer
	reader    *Reader
	left      map[string]time.Duration
	busy      map[string]bool
	failures  int
}

func newSite(t *testing.T) *site {
	s := &site{
		t: t, substrate: &substrate{all: make(map[string]providers.Info), hidden: make(map[string]bool)}, documents: newShared(),
		left: make(map[string]time.Duration), busy: make(map[string]bool),
	}
	s.restart()
	s.reader = s.journal.mustRead(t, "")
	t.Cleanup(func() { s.observer.close() })
	return s
}

// restart replaces the server by another one, as after kill -9.
func (s *site) restart() {
	if s.observer != nil {
		s.observer.close()
	}
	s.journal = s.documents.journal(s.t)
	if s.segments > 0 {
		s.journal.segments = s.segments
	}
	s.observer = NewObserver(ObserverConfig{
		Journal: s.journal, Change: s.documents.change, Provider: s.substrate, Log: slog.New(slog.NewTextHandler(s.t.Output(), nil)),
		Interval: 15 * time.Second, Left: func(info providers.Info) time.Duration { return s.left[info.Spec.ID] },
		Idle: func(_ context.Context, info providers.Info, _ time.Duration) (bool, error) {
			if s.busy[info.Spec.ID] {
				return false, nil
			}
			return false, errors.New("the agent does not answer")
		},
		OnFailure: func() { s.failures++ },
	})
}

// put makes a sandbox exist, created after the journal.
func (s *site) put(n int, change func(*providers.Info)) providers.Info {
	info := sandbox(n)
	info.CreateTime = time.Now().Add(time.Minute)
	if change != nil {
		change(&info)
	}
	s.all[info.Name] = info
	return info
}

// expect runs as many rounds as a change takes, and compares the events since the
// last ones.
func (s *site) expect(what, want string) []Event {
	s.t.Helper()
	for range sightings {
		if err := s.observer.Round(s.t.Context()); err != nil {
			s.t.Fatalf("%s: %v", what, err)
		}
	}
	got := s.reader.rest(s.t)
	if ids(got) != want {
		s.t.Fatalf("%s: got %q, want %q", what, ids(got), want)
	}
	return got
}

// What no server reported is found: creations, changes, replacements and ends.
func TestObserve(t *testing.T) {
	s := newSite(t)
	old := sandbox(0) // from before the journal
	s.all[old.Name] = old
	s.expect("an old sandbox", "")
	one := s.put(1, nil)
	s.put(2, func(i *providers.Info) { i.State = providers.StateCreating })
	s.expect("a new one", "1 created\n")
	two := s.put(2, func(i *providers.Info) {
		i.CreateTime, i.State, i.Message = one.CreateTime, providers.StateFailed, "it broke"
	})
	if got := s.expect("one that fails at once", "2 created\n2 state_changed\n"); got[1].Message != "it broke" || got[0].State != providers.StateActive {
		t.Errorf("%+v", got)
	}
	one.Incarnation = "another"
	s.all[one.Name] = one
	if got := s.expect("a replacement", "1 state_changed\n"); got[0].Reason != Replaced || got[0].Incarnation != "another" {
		t.Errorf("%+v", got)
	}
	one.State, one.Failure = providers.StateFailed, providers.FailureOutOfMemory
	s.all[one.Name] = one
	if got := s.expect("a failure", "1 state_changed\n"); got[0].Reason != OutOfMemory {
		t.Errorf("%+v", got)
	}
	one.State = providers.StateDeleting
	s.all[one.Name] = one
	s.expect("a deletion under way", "")
	delete(s.all, one.Name)
	s.expect("its end", "1 ended\n")
	two.CreateTime, two.Incarnation, two.State = two.CreateTime.Add(time.Hour), "next", providers.StateActive
	s.all[two.Name] = two
	s.expect("another sandbox of the same id", "2 ended\n2 created\n")
	s.hidden[two.Name] = true
	for range 5 {
		s.expect("one that a listing lacks", "")
	}
	s.hidden[two.Name] = false
	delete(s.all, old.Name)
	s.expect("the end of the old one", "0 ended\n")
}

// What a server reports is not found again, and keeps its reason.
func TestObserveAfterReports(t *testing.T) {
	s := newSite(t)
	one := s.put(1, nil)
	if err := s.observer.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.journal.mustAppend(t, New(Created, one, "").By("me"))
	if got := s.expect("its creation", "1 created\n"); got[0].Principal != "me" {
		t.Errorf("%+v", got)
	}
	delete(s.all, one.Name)
	if err := s.observer.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.journal.mustAppend(t, New(Ended, one, "").By("me"))
	if got := s.expect("its end, reported", "1 ended\n"); got[0].Reason != Requested {
		t.Errorf("%+v", got)
	}
	s.expect("nothing more", "")
}

// A server that is killed between any two steps loses no event: the next one finds it.
func TestObserveAfterKill(t *testing.T) {
	broken := errors.New("killed")
	for kill := 0; ; kill++ {
		s := newSite(t)
		one, two := s.put(1, nil), s.put(2, nil)
		s.expect("two creations", "1 created\n2 created\n")
		if err := s.observer.book.save(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.reader.rest(t)
		delete(s.all, one.Name)
		two.State = providers.StateSuspended
		s.all[two.Name] = two
		s.put(3, nil)
		// The server is killed before or after one of its changes of documents.
		steps, killed := 0, false
		s.documents.fail = func(string) error {
			if steps++; killed || steps == kill+1 {
				killed = true
				return broken
			}
			return nil
		}
		for range sightings {
			if err := s.observer.Round(t.Context()); err != nil && !errors.Is(err, broken) {
				t.Fatal(err)
			}
			if s.observer.book != nil {
				_ = s.observer.book.save(t.Context())
			}
		}
		s.documents.fail = nil
		s.restart()
		seen := make(map[string]bool)
		for range sightings + 1 {
			if err := s.observer.Round(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for _, e := range s.reader.rest(t) {
			if seen[e.ID] {
				t.Errorf("killed at step %d: %s %s twice", kill, e.SandboxID, e.Type)
			}
			seen[e.ID] = true
		}
		if len(seen) != 3 {
			t.Errorf("killed at step %d: %d events", kill, len(seen))
		}
		if !killed {
			if kill < 6 {
				t.Errorf("only %d steps", kill)
			}
			return
		}
	}
}

// The checkpoints are enough for sandboxes whose creation the journal has dropped.
func TestObserveFromCheckpoints(t *testing.T) {
	s := newSite(t)
	s.segments = 3
	s.journal.segments = s.segments
	one := s.put(1, nil)
	s.expect("its creation", "1 created\n")
	var batch []Event
	for i := range s.segments*segmentEvents + 2 {
		info := sandbox(10 + int(i/2))
		batch = append(batch, New([]Type{Created, Ended}[i%2], info, ""))
	}
	s.journal.mustAppend(t, batch...)
	if s.journal.first < 2 {
		t.Fatal("the journal has the creation")
	}
	s.reader.rest(t)
	if err := s.observer.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.observer.book.save(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.restart()
	delete(s.all, one.Name)
	if got := s.expect("its end", "1 ended\n"); got[0].Tenant != "t" {
		t.Errorf("%+v", got)
	}
}

// A sandbox is reported as expiring once for each end, unless its agent is busy.
func TestExpiring(t *testing.T) {
	s := newSite(t)
	set := func(n int, ttl, idle time.Duration) providers.Info {
		return s.put(n, func(i *providers.Info) {
			i.Spec.TTL, i.Spec.IdleTTL, i.LastActivity = ttl, idle, i.CreateTime
		})
	}
	set(1, time.Hour, 0)
	set(2, 0, time.Hour)
	set(3, 0, 0)
	set(4, 0, time.Hour)
	for _, id := range []string{"1", "2", "4"} {
		s.left[id] = 6 * time.Minute
	}
	s.busy["4"] = true
	s.expect("not yet", "1 created\n2 created\n3 created\n4 created\n")
	for _, id := range []string{"1", "2", "4"} {
		s.left[id] = 5 * time.Minute
	}
	got := s.expect("both soon", "1 expiring\n2 expiring\n")
	if got[0].Reason != TTL || got[1].Reason != IdleTTL || got[0].ExpireTime.IsZero() {
		t.Errorf("%+v", got)
	}
	s.expect("once", "")
	s.restart()
	s.expect("also after a restart", "")
	used := s.all["sg-2"]
	used.LastActivity = used.LastActivity.Add(time.Second)
	s.all[used.Name] = used
	s.expect("again, for another end", "2 expiring\n")
	// The end itself has the reason, if its server did not report it.
	late := s.all["sg-1"]
	late.CreateTime = time.Now().Add(-2 * time.Hour)
	delete(s.all, late.Name)
	k := s.observer.book.names[late.Name]
	k.Expire, k.Lifetime = time.Now().Add(-time.Second), TTL
	s.observer.book.set(late.Name, k)
	if got := s.expect("the end", "1 ended\n"); got[0].Reason != TTL {
		t.Errorf("%+v", got)
	}
}

// Rounds go on after failures, which are counted, and end with the context.
func TestObserverRun(t *testing.T) {
	s := newSite(t)
	s.observer.cfg.Interval = time.Millisecond
	failed := make(chan struct{})
	var once sync.Once
	s.observer.cfg.OnFailure = func() { once.Do(func() { close(failed) }) }
	s.fail = errors.New("the substrate is away")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.observer.Run(ctx)
	}()
	<-failed
	s.mu.Lock()
	s.fail = nil
	s.put(1, nil)
	s.mu.Unlock()
	if got, err := s.reader.Next(t.Context()); err == nil && ids(got) != "1 created\n" {
		t.Errorf("%q, %v", ids(got), err)
	}
	cancel()
	<-done
}

// Agents that do not answer delay a round for a short time only.
func TestSilentAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := NewObserver(ObserverConfig{
			Interval: 15 * time.Second, Left: func(providers.Info) time.Duration { return time.Minute },
			Idle: func(ctx context.Context, _ providers.Info, _ time.Duration) (bool, error) {
				<-ctx.Done()
				return false, context.Cause(ctx)
			},
		})
		o.book = &book{names: make(map[string]known)}
		found := make(map[string]providers.Info)
		for i := range 10 * maxQuestions {
			info := sandbox(i)
			info.Spec.IdleTTL = time.Hour
			found[info.Name], o.book.names[info.Name] = info, known{}
		}
		begun := time.Now()
		due := o.expiring(t.Context(), found)
		if took := time.Since(begun); len(due) < maxQuestions || len(due) == len(found) || took > questionsTime+questionTimeout {
			t.Errorf("%d of %d in %v", len(due), len(found), took)
		}
	})
}
