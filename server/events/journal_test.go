package events

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/sandgate/sandgate/providers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shared is a set of documents as a substrate keeps them.
type shared struct {
	mu        sync.Mutex
	conflicts bool // each change is called twice
	documents map[string][]byte
	// fail, when set, is called with the name of a document before it is changed, and
	// lose after that: its error hides that the change was stored.
	fail, lose func(name string) error
}

func newShared() *shared { return &shared{documents: make(map[string][]byte)} }

func (s *shared) change(_ context.Context, name string, change func([]byte) ([]byte, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		if err := s.fail(name); err != nil {
			return err
		}
	}
	if s.conflicts {
		if _, err := change(bytes.Clone(s.documents[name])); err != nil {
			return err
		}
	}
	now, err := change(bytes.Clone(s.documents[name]))
	if err != nil || now == nil {
		return err
	}
	if len(now) > 1<<20 {
		return fmt.Errorf("%s is too large", name)
	}
	s.documents[name] = bytes.Clone(now)
	if s.lose != nil {
		return s.lose(name)
	}
	return nil
}

func (s *shared) journal(t testing.TB) *Journal {
	return NewJournal(s.change, slog.New(slog.NewTextHandler(t.Output(), nil)), func(Type) {})
}

// sandbox is the n-th sandbox of a test.
func sandbox(n int) providers.Info {
	return providers.Info{
		Name: fmt.Sprintf("sg-%d", n), Incarnation: fmt.Sprintf("i%d", n), State: providers.StateActive,
		CreateTime: time.Unix(int64(n), 7), LastActivity: time.Unix(int64(n), 7), Spec: providers.Spec{Tenant: "t", ID: fmt.Sprint(n)},
	}
}

func creation(n int) Event { return New(Created, sandbox(n), "") }

func (j *Journal) mustAppend(t testing.TB, list ...Event) {
	t.Helper()
	if err := j.Append(t.Context(), list); err != nil {
		t.Fatal(err)
	}
}

func (j *Journal) mustRead(t testing.TB, cursor string) *Reader {
	t.Helper()
	r, err := j.Read(t.Context(), cursor)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// rest returns what a reader can get without waiting.
func (r *Reader) rest(t testing.TB) []Event {
	t.Helper()
	if err := r.j.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	var all []Event
	for {
		more, _ := r.poll()
		if len(more) == 0 {
			return all
		}
		all = append(all, more...)
	}
}

func ids(list []Event) string {
	var b strings.Builder
	for _, e := range list {
		fmt.Fprintf(&b, "%s %s\n", e.SandboxID, e.Type)
	}
	return b.String()
}

// A cursor is valid on another server, after a restart, and before the first event.
func TestCursor(t *testing.T) {
	s := newShared()
	one := s.journal(t)
	began := one.mustRead(t, "").Cursor()
	one.mustAppend(t, creation(1), creation(2), creation(3))
	two := s.journal(t)
	r := two.mustRead(t, began)
	all := r.rest(t)
	if got, want := ids(all), "1 created\n2 created\n3 created\n"; got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
	after := r.CursorAt(all[1])
	if got := ids(s.journal(t).mustRead(t, after).rest(t)); got != "3 created\n" {
		t.Errorf("after the second: %q", got)
	}
	if got := ids(one.mustRead(t, r.Cursor()).rest(t)); got != "" {
		t.Errorf("after the last: %q", got)
	}
	for _, bad := range []string{"x", "1.", "1.e.", "1..0", "2.e.0", "1.e.-1", "1.e.0.0", "1.e.00", "1.e.ZZ", "1." + strings.Repeat("e", 65) + ".0"} {
		if _, err := one.Read(t.Context(), bad); !errors.Is(err, ErrCursor) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzCursor(f *testing.F) {
	f.Add("1.ABC.0")
	f.Add("1.ABC.zz")
	f.Add("")
	f.Fuzz(func(t *testing.T, cursor string) {
		p, err := parseCursor(cursor)
		if err == nil && (p.String() != cursor || len(cursor) > 128) {
			t.Errorf("%q is %q", cursor, p)
		}
	})
}

// An event that two servers report is stored once, and nothing follows an end.
func TestDuplicates(t *testing.T) {
	s := newShared()
	s.conflicts = true
	one, two := s.journal(t), s.journal(t)
	r := one.mustRead(t, "")
	gone := New(Ended, sandbox(1), "").By("me")
	one.mustAppend(t, creation(1), creation(1))
	two.mustAppend(t, creation(1), gone)
	one.mustAppend(t, New(Ended, sandbox(1), ""), New(StateChanged, sandbox(1), ""), creation(1))
	again := sandbox(1)
	again.CreateTime = again.CreateTime.Add(time.Nanosecond)
	one.mustAppend(t, New(Created, again, ""))
	all := r.rest(t)
	if got := ids(all); got != "1 created\n1 ended\n1 created\n" {
		t.Fatalf("got %q", got)
	}
	if all[1].Principal != "me" || all[1].Reason != Requested || all[0].ID == all[2].ID {
		t.Errorf("%+v", all)
	}
}

// A write whose answer is lost is found, not repeated.
func TestLostAnswer(t *testing.T) {
	s := newShared()
	j := s.journal(t)
	r := j.mustRead(t, "")
	lost := errors.New("lost")
	s.lose = func(string) error { return lost }
	if err := j.Append(t.Context(), []Event{creation(1)}); !errors.Is(err, lost) {
		t.Fatal(err)
	}
	s.lose = nil
	j.mustAppend(t, creation(1), creation(2))
	if got := ids(r.rest(t)); got != "1 created\n2 created\n" {
		t.Errorf("got %q", got)
	}
}

// Ten thousand events reach a reader that waits, one that only begins then, and one
// on another server, in the same order.
func TestFlood(t *testing.T) {
	const n = 10_000
	s := newShared()
	one, two := s.journal(t), s.journal(t)
	readers := []*Reader{one.mustRead(t, ""), two.mustRead(t, "")}
	start := readers[0].Cursor()
	var work sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer work.Wait()
	defer cancel()
	for _, j := range []*Journal{one, two} {
		work.Go(func() { j.Run(ctx) })
	}
	got := make([]string, len(readers))
	var reading sync.WaitGroup
	for i, r := range readers {
		reading.Go(func() {
			var all []Event
			for len(all) < n {
				more, err := r.Next(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				all = append(all, more...)
			}
			got[i] = ids(all)
		})
	}
	var writing sync.WaitGroup
	for i, j := range []*Journal{one, two} {
		writing.Go(func() {
			for k := i; k < n; k += 200 {
				var batch []Event
				for m := k; m < min(k+200, n); m += 2 {
					batch = append(batch, creation(m))
				}
				if err := j.Append(ctx, batch); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writing.Wait()
	reading.Wait()
	late := ids(one.mustRead(t, start).rest(t))
	if got[0] != late || got[1] != late || strings.Count(late, "\n") != n {
		t.Errorf("%d, %d and %d events", strings.Count(got[0], "\n"), strings.Count(got[1], "\n"), strings.Count(late, "\n"))
	}
}

// short returns a journal of fewer segments.
func (s *shared) short(t testing.TB) *Journal {
	j := s.journal(t)
	j.segments = 3
	return j
}

// Beyond the journal's length, readers learn that they missed events, and continue.
func TestLapped(t *testing.T) {
	s := newShared()
	writer, sleeper := s.short(t), s.short(t)
	slow, far := writer.mustRead(t, ""), sleeper.mustRead(t, "")
	old := slow.Cursor()
	n := int(writer.segments*segmentEvents + 1)
	var batch []Event
	for i := range n {
		batch = append(batch, creation(i))
	}
	writer.mustAppend(t, batch...)
	if len(s.documents) != int(writer.segments) {
		t.Errorf("%d documents", len(s.documents))
	}
	for name, r := range map[string]*Reader{"slow": slow, "on a server that did not look": far, "with an old cursor": s.short(t).mustRead(t, old)} {
		if got := r.rest(t); len(got) != 1 || got[0].Type != Resync || got[0].ID == "" {
			t.Errorf("%s: %d events", name, len(got))
		}
		writer.mustAppend(t, creation(n+len(name)))
		if got := ids(r.rest(t)); strings.Count(got, "\n") != 1 || !strings.Contains(got, "created") {
			t.Errorf("%s: then %q", name, got)
		}
	}
	if len(writer.events) > n || len(writer.ids) != len(writer.events) {
		t.Errorf("%d events and %d ids are in memory", len(writer.events), len(writer.ids))
	}
}

// A journal that an operator deleted begins again.
func TestDeletedJournal(t *testing.T) {
	s := newShared()
	j := s.journal(t)
	r := j.mustRead(t, "")
	j.mustAppend(t, creation(1))
	r.rest(t)
	cursor := r.Cursor()
	clear(s.documents)
	j.mustAppend(t, creation(2))
	for _, r := range []*Reader{r, s.journal(t).mustRead(t, cursor)} {
		if got := r.rest(t); len(got) != 1 || got[0].Type != Resync {
			t.Errorf("%+v", got)
		}
	}
	j.mustAppend(t, creation(3))
	if got := ids(r.rest(t)); got != "3 created\n" {
		t.Errorf("got %q", got)
	}
}

// Events with the largest labels stay within what a ConfigMap holds.
func TestLargeEvents(t *testing.T) {
	s := newShared()
	j := s.journal(t)
	r := j.mustRead(t, "")
	info := sandbox(0)
	info.Spec.Labels = make(map[string]string)
	for i := range 32 {
		info.Spec.Labels[fmt.Sprintf("%062d%d", 0, i)[:63]+fmt.Sprint(i%10)] = strings.Repeat("v", 63)
	}
	var batch []Event
	for i := range 150 {
		info.Name = fmt.Sprint(i)
		batch = append(batch, New(Created, info, ""))
	}
	j.mustAppend(t, batch...)
	if got := r.rest(t); len(got) != len(batch) {
		t.Errorf("%d of %d events", len(got), len(batch))
	}
	for name, document := range s.documents {
		if len(document) > maxSegmentBytes+16<<10 {
			t.Errorf("%s has %d bytes", name, len(document))
		}
	}
}

// Noted events survive failures of the substrate, and a queue that overflows drops.
func TestNote(t *testing.T) {
	s := newShared()
	j := s.journal(t)
	r := j.mustRead(t, "")
	broken := errors.New("broken")
	s.fail = func(string) error { return broken }
	for i := range maxQueue + 10 {
		j.Note(creation(i))
	}
	if err := j.Flush(t.Context()); !errors.Is(err, broken) {
		t.Fatal(err)
	}
	s.fail = nil
	if err := j.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := r.rest(t); len(got) != maxQueue || got[0].SandboxID != "0" {
		t.Errorf("%d events", len(got))
	}
}

// Whatever servers append, crash and read, in any order: a reader that continues from
// cursors on any servers gets every event that was stored, in one order, and each
// once per cursor.
func TestReadersAgree(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := newShared()
		s.conflicts = rapid.Bool().Draw(rt, "conflicts")
		servers := []*Journal{s.journal(t), s.journal(t), s.journal(t)}
		start := servers[0].mustRead(t, "").Cursor()
		cursor, next := start, 0
		var followed []Event
		flaky := rapid.SliceOfN(rapid.IntRange(0, 9), 1, 20)
		for range rapid.IntRange(1, 15).Draw(rt, "steps") {
			i := rapid.IntRange(0, 2).Draw(rt, "server")
			switch rapid.IntRange(0, 3).Draw(rt, "step") {
			case 0: // append, perhaps with a lost answer, perhaps once more
				luck := flaky.Draw(rt, "luck")
				n := 0
				s.lose = func(string) error {
					if n++; luck[n%len(luck)] == 0 {
						return errors.New("lost")
					}
					return nil
				}
				var batch []Event
				for range rapid.SampledFrom([]int{1, 2, 7, 100, segmentEvents + 1}).Draw(rt, "events") {
					batch = append(batch, creation(next))
					next++
				}
				for servers[i].Append(t.Context(), batch) != nil {
					luck = append(luck, 1)
				}
				s.lose = nil
			case 1: // restart
				servers[i] = s.journal(t)
			case 2: // follow, and forget the last part of it
				r, err := servers[i].Read(t.Context(), cursor)
				if err != nil {
					rt.Fatal(err)
				}
				more := r.rest(t)
				more = more[:rapid.IntRange(0, len(more)).Draw(rt, "kept")]
				if len(more) > 0 {
					cursor = r.CursorAt(more[len(more)-1])
					followed = append(followed, more...)
				}
				r.Close()
			case 3: // report what is known already
				if next > 0 {
					servers[i].mustAppend(t, creation(rapid.IntRange(0, next-1).Draw(rt, "known")))
				}
			}
		}
		r, err := servers[0].Read(t.Context(), cursor)
		if err != nil {
			rt.Fatal(err)
		}
		followed = append(followed, r.rest(t)...)
		r.Close()
		for i, e := range followed {
			if i > 0 && e.Seq <= followed[i-1].Seq || e.Type == Resync {
				rt.Fatalf("event %d: %s %d after %d", i, e.Type, e.Seq, followed[max(i-1, 0)].Seq)
			}
		}
		if len(followed) != next {
			rt.Fatalf("%d of %d events", len(followed), next)
		}
	})
}

func TestFilter(t *testing.T) {
	e := creation(12)
	e.Template, e.Labels = "big", map[string]string{"a": "1", "b": "2"}
	for _, c := range []struct {
		f    Filter
		want bool
	}{
		{Filter{}, true},
		{Filter{Tenants: []string{"t"}, IDPrefix: "1", Templates: []string{"x", "big"}, Labels: map[string]string{"a": "1"}, Types: []Type{Created}}, true},
		{Filter{Tenants: []string{"u"}}, false},
		{Filter{IDPrefix: "2"}, false},
		{Filter{Templates: []string{"x"}}, false},
		{Filter{Labels: map[string]string{"a": "1", "c": ""}}, false},
		{Filter{Types: []Type{Ended}}, false},
	} {
		if got := c.f.Matches(e); got != c.want {
			t.Errorf("%+v: %t", c.f, got)
		}
		if !c.f.Matches(Event{Type: Resync}) {
			t.Errorf("%+v has no resync", c.f)
		}
	}
}
