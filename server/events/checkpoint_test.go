package events

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sandgate/sandgate/providers"
)

// someLabels returns labels whose keys and values have a size. The server accepts up to
// 32 of up to 63.
func someLabels(n, size int) map[string]string {
	labels := make(map[string]string)
	for i := range n {
		labels[fmt.Sprintf("%0*d", max(size, 2), i)] = strings.Repeat("v", size)
	}
	return labels
}

// inPart returns names of sandboxes that one part has, of the greatest length.
func inPart(t testing.TB, n int) []string {
	t.Helper()
	var names []string
	for i := range 1000 * n {
		name := fmt.Sprintf("sg-%060d", i)
		if part, _ := hashOf(name); part == 0 {
			names = append(names, name)
		}
		if len(names) == n {
			return names
		}
	}
	t.Fatal("too few names of a part")
	return nil
}

// largest is a known sandbox of the greatest size.
func largest(name string, labels map[string]string) known {
	info := sandbox(0)
	info.Name, info.State, info.Incarnation = name, providers.StateSuspended, strings.Repeat("i", 64)
	info.Spec.Tenant, info.Spec.ID, info.Spec.Template = strings.Repeat("t", 256), strings.Repeat("d", 128), strings.Repeat("p", 128)
	info.Spec.IdleTTL, info.Spec.Labels = 1, labels
	k := knownOf(info)
	k.Warned = k.Expire
	return k
}

func open(t testing.TB, s *shared) *book {
	t.Helper()
	b, err := openBook(t.Context(), s.journal(t), s.change)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Sandboxes with the largest labels are stored, in documents that a ConfigMap can hold,
// and read again: a thousand in one part, as of 32 000 in all.
func TestCheckpointsOfManyLargeSandboxes(t *testing.T) {
	s := newShared()
	b := open(t, s)
	const n = 1_000
	labels := someLabels(32, 63)
	for _, name := range inPart(t, n) {
		b.set(name, largest(name, labels))
	}
	if err := b.save(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.close()
	sum, greatest := 0, 0
	for _, document := range s.documents {
		sum, greatest = sum+len(document), max(greatest, len(document))
	}
	t.Logf("%d sandboxes of %d bytes are in %d documents of up to %d bytes", n, sum/n, len(s.documents), greatest)
	if greatest > maxPartBytes {
		t.Errorf("a document has %d bytes", greatest)
	}
	again := open(t, s)
	defer again.close()
	if !maps.EqualFunc(again.names, b.names, known.equal) {
		t.Errorf("%d of %d sandboxes were read", len(again.names), n)
	}
}

// ledger is the sandboxes of a short journal, and a server that stores checkpoints of it.
type ledger struct {
	*shared
	t       testing.TB
	rt      *rapid.T
	writer  *Journal
	book    *book
	exist   map[string]known
	created int
}

// smallPart has room for three sandboxes with eight labels.
const smallPart = 4 << 10

// journal returns one that has room for what the steps of a test append.
func (l *ledger) journal() *Journal {
	j := l.shared.journal(l.t)
	j.segments = 2
	return j
}

// restart opens the book, as another server does after kill -9.
func (l *ledger) restart() *book {
	b, err := openBook(l.t.Context(), l.journal(), l.change)
	if err != nil {
		l.rt.Fatal(err)
	}
	b.maxPart = smallPart
	return b
}

func (l *ledger) create(names []string, labels map[string]string) {
	var batch []Event
	for _, name := range names {
		if _, ok := l.exist[name]; ok {
			continue
		}
		l.created++
		info := sandbox(l.created)
		info.Name, info.Spec.Labels = name, labels
		l.exist[name] = knownOf(info)
		batch = append(batch, New(Created, info, ""))
	}
	l.writer.mustAppend(l.t, batch...)
}

func (l *ledger) remove(names []string) {
	var batch []Event
	for _, name := range names {
		if k, ok := l.exist[name]; ok {
			batch = append(batch, New(Ended, k.info(name), ""))
			delete(l.exist, name)
		}
	}
	l.writer.mustAppend(l.t, batch...)
}

var errBroken = errors.New("broken")

// store stores what the journal has. With a failure, one write of documents fails, or
// all from it on, or its answer is lost.
func (l *ledger) store(bad int, failure string) {
	if err := l.book.reader.j.Sync(l.t.Context()); err != nil {
		l.rt.Fatal(err)
	}
	l.book.catchUp()
	n := 0
	l.fail = func(string) error {
		if n++; n == bad && failure == "one" || n >= bad && failure == "all" {
			return errBroken
		}
		return nil
	}
	l.lose = func(string) error {
		if n == bad && failure == "answer" {
			return errBroken
		}
		return nil
	}
	err := l.book.save(l.t.Context())
	l.fail, l.lose = nil, nil
	if err != nil && (failure == "" || !errors.Is(err, errBroken)) {
		l.rt.Fatal(err)
	}
}

// goRound has the journal lose what it has. The checkpoints keep that.
func (l *ledger) goRound() {
	for range 4 {
		l.store(0, "")
		var batch []Event
		for range l.writer.segments * segmentEvents / 8 {
			l.created++
			info := sandbox(l.created)
			batch = append(batch, New(Created, info, ""), New(Ended, info, ""))
		}
		l.writer.mustAppend(l.t, batch...)
	}
	l.store(0, "")
}

// check compares what the next server would know, and returns how many documents of
// split parts there are.
func (l *ledger) check() (splits int) {
	for name, document := range l.documents {
		if strings.HasPrefix(name, "events-known-00-") {
			splits++
		}
		if strings.HasPrefix(name, "events-known-") && len(document) > smallPart {
			l.rt.Fatalf("%s has %d bytes", name, len(document))
		}
	}
	next := l.restart()
	next.close()
	if got, want := slices.Sorted(maps.Keys(next.names)), slices.Sorted(maps.Keys(l.exist)); !slices.Equal(got, want) {
		l.rt.Fatalf("the next server has %d sandboxes, %d exist", len(got), len(want))
	}
	for name, k := range l.exist {
		if got := next.names[name]; !got.CreateTime.Equal(k.CreateTime) || !maps.Equal(got.Labels, k.Labels) {
			l.rt.Fatalf("%s: %+v", name, got)
		}
	}
	return splits
}

// Whatever sandboxes come and go, and wherever writes fail or their answers are lost: no
// part is larger than its bound, and a server that opens the book, at any time, has all
// sandboxes that the journal has.
func TestCheckpointsAreBoundedAndLoseNothing(t *testing.T) {
	names := inPart(t, 24)
	splits := 0
	rapid.Check(t, func(rt *rapid.T) {
		l := &ledger{shared: newShared(), t: t, rt: rt, exist: make(map[string]known)}
		l.writer, l.book = l.journal(), l.restart()
		defer func() { l.book.close() }()
		l.create(names[:rapid.IntRange(0, 8).Draw(rt, "first")], someLabels(8, 63))
		l.goRound()
		for range rapid.IntRange(1, 6).Draw(rt, "steps") {
			from := rapid.IntRange(0, len(names)-1).Draw(rt, "from")
			some := names[from:min(len(names), from+rapid.SampledFrom([]int{1, 5, 24}).Draw(rt, "sandboxes"))]
			switch rapid.SampledFrom([]string{"create", "delete", "store", "store", "restart"}).Draw(rt, "step") {
			case "create":
				l.create(some, someLabels(rapid.IntRange(0, 8).Draw(rt, "labels"), 63))
			case "delete":
				l.remove(some)
			case "store":
				failure := rapid.SampledFrom([]string{"", "one", "all", "answer"}).Draw(rt, "failure")
				l.store(rapid.IntRange(1, 5).Draw(rt, "write"), failure)
				splits += l.check()
			case "restart":
				l.book.close()
				l.book = l.restart()
			}
		}
		l.check()
	})
	if splits == 0 {
		t.Error("no part was split")
	}
}
