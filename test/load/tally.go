//go:build linux

package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandgate/sandgate/bench/report"
)

// maxFailures ends a run; shownFailures are printed.
const (
	maxFailures   = 100
	shownFailures = 5
)

// tally holds the counters of a load.
type tally struct {
	calls, bytes, events, interrupted atomic.Int64

	mu       sync.Mutex
	took     map[string]report.Samples // of the calls that succeeded, by name
	failures int
	first    []error
	tooMany  chan struct{}
}

func newTally() *tally {
	return &tally{took: make(map[string]report.Samples), tooMany: make(chan struct{})}
}

// add counts a call that succeeded.
func (t *tally) add(name string, took time.Duration) {
	t.calls.Add(1)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.took[name] = append(t.took[name], took)
}

// fail counts an error, or content that differs. It closes tooMany when there are too
// many.
func (t *tally) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failures++; t.failures <= shownFailures {
		t.first = append(t.first, err)
	}
	if t.failures == maxFailures {
		close(t.tooMany)
	}
}

// failed returns how many failures there were.
func (t *tally) failed() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failures
}

// err returns nil if nothing failed.
func (t *tally) err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failures == 0 {
		return nil
	}
	text := ""
	for _, err := range t.first {
		text += "\n  " + err.Error()
	}
	return fmt.Errorf("%d errors, of which the first are:%s", t.failures, text)
}

// print writes a table of the calls.
func (t *tally) print(w io.Writer, title string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(w, "\n| %s | calls | p50 | p99 | max |\n|---|---:|---:|---:|---:|\n", title)
	for _, name := range slices.Sorted(maps.Keys(t.took)) {
		took := t.took[name]
		fmt.Fprintf(w, "| %s | %d | %s | %s | %s |\n", name, len(took),
			report.Milliseconds(took.Median()), report.Milliseconds(took.Quantile(0.99)), report.Milliseconds(slices.Max(took)))
	}
	fmt.Fprintln(w)
}
