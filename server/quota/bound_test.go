package quota

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandgate/sandgate/providers"
)

// More creations within 30 s than the document has room for: all succeed, the document
// stays below its bound, and what was taken out of it counts for the other server.
func TestDocumentOfManyCreationsIsBounded(t *testing.T) {
	synctest.Test(t, testDocumentOfManyCreationsIsBounded) // No entry expires.
}

func testDocumentOfManyCreationsIsBounded(t *testing.T) {
	const rounds, each, more, bound = 8, 30, 3, 24 << 10
	s := newSubstrate()
	config := Config{MaxSandboxes: rounds*each + more, Tenant: Limits{CreationsPerMinute: 1 << 20}}
	one, two := newBook(s, config), newBook(s, config)
	one.maxDocument, two.maxDocument = bound, bound
	if err := create(t, s, two, "first", specOf("t", "", 0)); err != nil {
		t.Fatal(err)
	}
	for round := range rounds {
		var work sync.WaitGroup
		for i := range each {
			work.Go(func() {
				if err := create(t, s, one, fmt.Sprintf("a-sandbox-with-a-long-name-%d-%d", round, i), specOf("t", "somebody@example.com", 1<<30)); err != nil {
					t.Error(err)
				}
			})
		}
		work.Wait()
	}
	if s.largest < bound/2 || s.largest > bound {
		t.Errorf("the document had up to %d bytes", s.largest)
	}
	for i := range more {
		err := create(t, s, two, fmt.Sprint("more-", i), specOf("t", "", 0))
		if last := i == more-1; last != isBeyond(err, "max_sandboxes", "server") || !last && err != nil {
			t.Errorf("the other server: %v", err)
		}
	}
}

// While the document is full of creations under way, another one is refused, to be
// tried again. There is room when they have ended, however they did.
func TestCreationsUnderWayFillTheDocument(t *testing.T) {
	s := newSubstrate()
	config := Config{Tenant: Limits{MaxSandboxes: 1000, CreationsPerMinute: 1000}}
	b, other := newBook(s, config), newBook(s, config)
	b.maxDocument, other.maxDocument = 4<<10, 4<<10
	spec := specOf("t", "p", 1)
	var names []string
	for {
		name := fmt.Sprint("s-", len(names))
		err := b.Reserve(t.Context(), name, spec)
		if errors.Is(err, providers.ErrExhausted) {
			break
		}
		if names = append(names, name); err != nil || len(names) > 100 {
			t.Fatalf("%d reservations: %v", len(names), err)
		}
	}
	if len(names) < 10 || s.largest > b.maxDocument {
		t.Errorf("%d reservations, %d bytes", len(names), s.largest)
	}
	if err := other.Reserve(t.Context(), "other", spec); !errors.Is(err, providers.ErrExhausted) {
		t.Errorf("another server: %v", err)
	}
	if err := b.Reserve(t.Context(), names[0], spec); err != nil {
		t.Errorf("a creation that has an entry: %v", err)
	}
	b.Settle(names[0], "")
	for i, name := range names {
		incarnation := ""
		if i%2 == 0 {
			info, _, _ := s.Create(t.Context(), name, spec)
			incarnation = info.Incarnation
		}
		b.Settle(name, incarnation)
	}
	b.Flush(t.Context(), slog.New(slog.DiscardHandler))
	for i := range len(names) {
		if err := create(t, s, other, fmt.Sprint("other-", i), spec); err != nil {
			t.Fatalf("another server afterwards: %v", err)
		}
	}
	if s.largest > b.maxDocument {
		t.Errorf("%d bytes", s.largest)
	}
	// What the other server took out does not come back.
	b.Flush(t.Context(), slog.New(slog.DiscardHandler))
	if err := b.Reserve(t.Context(), "last", spec); err != nil || s.largest > b.maxDocument {
		t.Errorf("%v, %d bytes", err, s.largest)
	}
	// A listing shows which of them have failed.
	other.listed = time.Time{}
	for _, status := range mustStatus(t, other) {
		if want := int64((len(names)+1)/2 + len(names) + 1); status.Quota == "max_sandboxes" && status.Used != want {
			t.Errorf("%d counted, want %d", status.Used, want)
		}
	}
}

func mustStatus(t *testing.T, b *Book) []Status {
	t.Helper()
	all, err := b.Status(t.Context(), Owner{"t", "p"}, NewStreams(Config{}))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Entries that were written again after an operator had deleted the document do not
// keep servers listing for ever.
func TestDocumentThatWasDeletedCatchesUp(t *testing.T) {
	s := newSubstrate()
	config := Config{MaxSandboxes: 1000}
	one, two := newBook(s, config), newBook(s, config)
	one.maxDocument, two.maxDocument = 700, 700
	for i := range 20 {
		if err := create(t, s, one, fmt.Sprint("s-", i), specOf("t", "", 0)); err != nil {
			t.Fatal(err)
		}
	}
	s.document = nil
	for i, b := range []*Book{one, two, one, two} {
		for k := range 3 {
			if err := create(t, s, b, fmt.Sprint("more-", i, k), specOf("t", "", 0)); err != nil {
				t.Fatal(err)
			}
		}
	}
}
