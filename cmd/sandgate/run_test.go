package main

import (
	"context"
	"strings"
	"syscall"
	"testing"

	"github.com/sandgate/sandgate/clients/go/fake"
)

func TestRun(t *testing.T) {
	server := fake.Start(t, &fake.Server{Play: play})
	for args, code := range map[string]int{"run -- both": 3, "run -- missing": failed, "run --sandbox-env A=b -- slow": 124} {
		if got := run(t.Context(), server, "", strings.Fields(args)...); got.code != code {
			t.Errorf("%s: %+v", args, got)
		}
	}
	if left := must(t, server, "ls", "-q"); left != "" {
		t.Errorf("left behind: %q", left)
	}
	must(t, server, "run", "--id", "kept", "--keep", "--", "echo")
	if got := must(t, server, "run", "--id", "kept", "--", "echo", "again"); got != "again\n" {
		t.Errorf("got %q", got)
	}
	if left := must(t, server, "ls", "-q"); left != "kept\n" {
		t.Errorf("a sandbox that was there before was deleted: %q", left)
	}
}

// An interrupted run kills its command, deletes its sandbox, and exits as a
// shell says that an interrupted program does.
func TestInterruptedRunDeletesItsSandbox(t *testing.T) {
	started := make(chan struct{}, 1)
	server := fake.Start(t, &fake.Server{Play: func(r *fake.Run) {
		started <- struct{}{}
		<-r.Killed
	}})
	for signal, code := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			<-started
			cancel(signalled{signal})
		}()
		if got := run(ctx, server, "", "run", "--", "wait"); got.code != code || got.stderr != "" {
			t.Errorf("%v: %+v", signal, got)
		}
		if left := must(t, server, "ls", "-q"); left != "" {
			t.Errorf("left behind: %q", left)
		}
	}
}

// A run that is interrupted while the answer to its creation is on the way
// leaves no sandbox.
func TestInterruptedCreationLeavesNoSandbox(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	deleted := make(chan struct{})
	server := fake.Start(t, &fake.Server{Late: func(method string) {
		switch {
		case strings.HasSuffix(method, "/CreateSandbox"):
			cancel(signalled{syscall.SIGINT})
			<-deleted
		case strings.HasSuffix(method, "/DeleteSandbox"):
			close(deleted)
		}
	}})
	if got := run(ctx, server, "", "run", "--", "echo"); got.code != 130 {
		t.Errorf("got %+v", got)
	}
	if left := must(t, server, "ls", "-q"); left != "" {
		t.Errorf("left behind: %q", left)
	}
}
