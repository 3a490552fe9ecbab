//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		main() // the server with the fake provider
		return
	}
	goleak.VerifyTestMain(m)
}

// A small load succeeds, makes every call and leaves nothing.
func TestLoad(t *testing.T) {
	l := &load{provider: "fake", sandboxes: 30, options: options{tenants: 15, workers: 6, seed: 7, duration: time.Minute, calls: 600}}
	var out bytes.Buffer
	if err := l.run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"CreateSandbox", "DeleteSandbox", "Download", "Execute: 64 KiB of output", "Execute: stdin", "Execute: true",
		"GetSandbox", "ListSandboxes: a page", "ReadLines", "Upload", "WriteFile",
	} {
		if len(l.tally.took[name]) == 0 || !strings.Contains(out.String(), "| "+name+" |") {
			t.Errorf("no %s in\n%s", name, out.String())
		}
	}
	created, deleted := len(l.tally.took["CreateSandbox"]), len(l.tally.took["DeleteSandbox"])
	if created != deleted || l.tally.events.Load() < int64(created+deleted) || l.tally.bytes.Load() == 0 {
		t.Errorf("%d created, %d deleted, %d events, %d bytes", created, deleted, l.tally.events.Load(), l.tally.bytes.Load())
	}
	if _, err := os.Stat(l.host.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v", l.host.dir, err)
	}
}

// The number of calls is bounded, too.
func TestCalls(t *testing.T) {
	l := &load{provider: "fake", sandboxes: 2, options: options{tenants: 2, workers: 2, seed: 7, duration: time.Hour, calls: 20}}
	if err := l.run(t.Context(), new(bytes.Buffer)); err != nil {
		t.Fatal(err)
	}
	if n := l.tally.calls.Load(); n < 24 || n > 40 { // 2 creations, 20, at most 2 more of each worker's last round, 2 deletions
		t.Errorf("%d calls", n)
	}
}

// loaded returns a worker with two sandboxes, one for each of two tenants.
func loaded(t *testing.T) (*load, *worker) {
	t.Helper()
	l := &load{provider: "fake", sandboxes: 2, options: options{tenants: 2, workers: 1, seed: 7}, tally: newTally()}
	var err error
	if l.host, err = newHost(t.Context(), l.provider, l.options.tenants); err != nil {
		t.Fatal(err)
	}
	watching, unwatch := context.WithCancelCause(context.Background())
	var watches sync.WaitGroup
	t.Cleanup(func() {
		errs := []error{l.clear(context.Background())}
		unwatch(errors.New("the test is over"))
		watches.Wait()
		for _, n := range l.tenants {
			errs = append(errs, n.client.Close())
		}
		if err := errors.Join(append(errs, l.host.stop())...); err != nil {
			t.Error(err)
		}
	})
	if err := l.connect(watching, &watches); err != nil {
		t.Fatal(err)
	}
	w := l.workers[0]
	if err := w.all(t.Context(), w.create); err != nil {
		t.Fatal(err)
	}
	return l, w
}

// What comes back differs from what is expected: each check finds it.
func TestDifferencesAreFound(t *testing.T) {
	l, w := loaded(t)
	ctx, n := t.Context(), l.tenants[0]
	b := n.boxes[0]
	for what, step := range map[string]struct {
		before, call func(context.Context, *box) error
		change       func()
	}{
		"a byte of a text":   {w.write, w.read, func() { b.text = [2]*content{{seed: 1, size: 10}, {seed: 1, size: 10}} }},
		"a byte of a file":   {w.upload, w.download, func() { b.binary = [2]*content{{seed: 1, size: 10}, {seed: 1, size: 10}} }},
		"the incarnation":    {w.get, w.get, func() { b.handle = n.client.Sandbox(b.id); b.handle.Incarnation = "another" }},
		"a sandbox too many": {w.list, w.list, func() { n.boxes = append(n.boxes, &box{tenant: n, id: "missing"}) }},
	} {
		saved, boxes := *b, n.boxes
		if err := step.before(ctx, b); err != nil {
			t.Errorf("%s: before: %v", what, err)
		}
		step.change()
		if err := step.call(ctx, b); err == nil {
			t.Errorf("%s: not found", what)
		}
		*b, n.boxes = saved, boxes
	}
	if err := w.execute(ctx, b, "Execute", sandgate.ExecuteRequest{Argv: []string{"false"}}, nil); err == nil {
		t.Error("an exit code: not found")
	}
	n.ended["never-deleted"] = 0
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := n.awaitEvents(short, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a missing event: %v", err)
	}
	delete(n.ended, "never-deleted")
	if err := w.recreate(ctx, b); err != nil || b.id != n.name+"-2" {
		t.Fatalf("recreate: %s, %v", b.id, err)
	}
	if err := n.awaitEvents(ctx, 0); err != nil || len(n.ended) != 1 {
		t.Errorf("events of a sandbox: %v, %v", n.ended, err)
	}
	if err := l.tally.err(); err != nil {
		t.Error(err)
	}
}

// A kill makes calls uncertain that overlap it, and no others.
func TestRestart(t *testing.T) {
	l, w := loaded(t)
	if l.host.disturbed(time.Time{}) {
		t.Error("disturbed before the first kill")
	}
	before := time.Now()
	first, err := l.host.sample(t.Context(), before)
	if err != nil || first.life != 0 || len(first.values) != len(gauges) || first.values[0] < 1<<20 || first.values[1] < 5 || first.values[2] < 5 {
		t.Fatalf("%+v, %v", first, err)
	}
	if err := l.host.restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !l.host.disturbed(before) || l.host.disturbed(time.Now().Add(reconnectTime)) {
		t.Error("only what overlaps a kill is disturbed")
	}
	second, err := l.host.sample(t.Context(), before)
	if err != nil || second.life != 1 || second.at <= first.at {
		t.Errorf("%+v, %v", second, err)
	}
	// The fake provider's sandboxes have gone with the server.
	for _, n := range l.tenants {
		n.boxes[0].unknown = true
	}
	if err := w.all(t.Context(), w.recreate); err != nil {
		t.Error(err)
	}
}

func TestFlags(t *testing.T) {
	set := func(o *options, args ...string) error {
		flags := flag.NewFlagSet("", flag.ContinueOnError)
		o.define(flags)
		if err := flags.Parse(args); err != nil {
			t.Fatal(err)
		}
		return o.complete(flags)
	}
	var o options
	if err := set(&o); err != nil || o.duration != time.Minute || o.tenants != 200 || o.seed == 0 {
		t.Errorf("%+v, %v", o, err)
	}
	o = options{}
	if err := set(&o, "-soak", "-local", "3", "-seed", "9"); err != nil || o.duration != time.Hour || o.local != 3 || o.seed != 9 || o.every != 18*time.Second {
		t.Errorf("%+v, %v", o, err)
	}
	for _, args := range [][]string{{"-soak", "-for", "10s"}, {"-tenants", "0"}, {"-for", "0s"}, {"-local", "-1"}, {"-soak", "-local", "0"}} {
		o = options{}
		if err := set(&o, args...); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}
