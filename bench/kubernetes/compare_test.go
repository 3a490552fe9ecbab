package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRowsAreThereForEveryTransport(t *testing.T) {
	var names []string
	for _, r := range rows() {
		names = append(names, r.Name)
	}
	for _, by := range transports {
		for _, what := range []string{"execute-kubernetes", "copy-kubernetes", "create-kubernetes", "execute-agentsandbox", "create-agentsandbox"} {
			if name := what + "-" + string(by); !slices.Contains(names, name) {
				t.Errorf("there is no row %s", name)
			}
		}
	}
	slices.Sort(names)
	if len(slices.Compact(slices.Clone(names))) != len(names) {
		t.Errorf("names come twice: %v", names)
	}
}

// worker is a side that takes as long as it is told and remembers its work.
func worker(name string, takes time.Duration, refuses string, log *[]string) *side {
	return &side{name: name, do: func(_ context.Context, work string, _ time.Duration) (time.Duration, error) {
		*log = append(*log, name+" "+work)
		if refuses != "" && strings.HasPrefix(work, refuses) {
			return 0, errors.New("cannot " + work)
		}
		return takes, nil
	}}
}

func TestComparing(t *testing.T) {
	var log []string
	ours := []*side{worker("by exec", 30*time.Millisecond, "", &log), worker("by pod-ip", 10*time.Millisecond, "", &log)}
	peer := worker("peer", 20*time.Millisecond, "upload", &log)
	settled := 0
	b := &bench{options: options{scale: 1}}
	figures, err := b.compare(t.Context(), ours, peer, func() error { settled++; return nil })
	if err != nil {
		t.Fatal(err)
	}
	if want := 2 * len(works()); len(figures) != want {
		t.Fatalf("%d figures, want %d", len(figures), want)
	}
	if f := figures[0]; f.What != "execute true, by exec | peer" || f.Ratio != 1.5 {
		t.Errorf("the first is %+v", f)
	}
	if f := figures[1]; f.What != "execute true, by pod-ip | peer" || f.Ratio != 0.5 {
		t.Errorf("the second is %+v", f)
	}
	notes := 0
	for _, f := range figures {
		if strings.HasPrefix(f.What, "upload") != (f.Theirs == "failed") {
			t.Errorf("%+v", f)
		}
		if f.Note != "" {
			notes++
		}
	}
	if notes != 2 {
		t.Errorf("%d notes, want one for each work that the peer refuses", notes)
	}
	// All open first; then one warming call of each, from the back, and whole turns,
	// from the front.
	w := works()[0]
	order := []string{"by exec open", "by pod-ip open", "peer open", "peer execute", "by pod-ip execute", "by exec execute"}
	for _, s := range []string{"by exec execute", "by pod-ip execute", "peer execute"} {
		order = append(order, slices.Repeat([]string{s}, w.turn)...)
	}
	if !slices.Equal(log[:len(order)], order) {
		t.Errorf("the order was %v, want %v", log[:len(order)], order)
	}
	// Once it has refused, the peer is not asked again.
	if n := countOf(log, "peer upload 65536"); n != 1 {
		t.Errorf("the peer was asked %d times for what it refuses", n)
	}
	if n := countOf(log, "by exec upload 65536"); n != 1+5*4 {
		t.Errorf("ours was asked %d times", n)
	}
	if settled == 0 {
		t.Error("nobody waited for the pools")
	}
}

func TestOursMustNotRefuse(t *testing.T) {
	var log []string
	b := &bench{options: options{scale: 1}}
	_, err := b.compare(t.Context(), []*side{worker("by exec", time.Second, "grep", &log)}, worker("peer", time.Second, "", &log), func() error { return nil })
	if err == nil || !strings.Contains(err.Error(), "by exec, grep 20 files: cannot grep") {
		t.Errorf("compare: %v", err)
	}
}

func countOf(log []string, entry string) int {
	n := 0
	for _, e := range log {
		if e == entry {
			n++
		}
	}
	return n
}
