package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// hiders are ways in which a descendant tries not to be found. Each leaves a
// process whose command line holds the mark and which would run for an hour.
func hiders(mark string) map[string]string {
	daemon := fmt.Sprintf(`python3 -c '
import os, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.chdir("/"); os.umask(0)
for fd in range(256):
    try: os.close(fd)
    except OSError: pass
os.execve("/bin/sleep", ["sleep", "3600.%s"], {})
'`, mark)
	return map[string]string{
		"background":  fmt.Sprintf("sleep 3600.%s & sleep 3600.%s", mark, mark),
		"nohup":       fmt.Sprintf("nohup setsid sleep 3600.%s >/dev/null 2>&1 & sleep 3600.%s", mark, mark),
		"daemon":      daemon + "; sleep 3600." + mark,
		"double fork": fmt.Sprintf("( ( setsid sleep 3600.%s </dev/null >/dev/null 2>&1 & ) & ); sleep 3600.%s", mark, mark),
		"empty env":   fmt.Sprintf("env -i setsid sleep 3600.%s & exec env -i sleep 3600.%s", mark, mark),
		"stopped":     fmt.Sprintf("sleep 3600.%s & kill -STOP $!; sleep 3600.%s", mark, mark),
		"ignoring":    fmt.Sprintf("trap '' TERM INT HUP; sh -c 'trap \"\" TERM; while :; do sleep 3600.%s; done' & sleep 3600.%s", mark, mark),
		"respawning":  fmt.Sprintf("f() { while :; do setsid sleep 3600.%s; done; }; f & f & f & f & sleep 3600.%s", mark, mark),
	}
}

var marks int

func newMark() string {
	marks++
	return fmt.Sprintf("%d%03d", os.Getpid(), marks)
}

// Timeout, kill, cancel and the loss of the caller end every descendant.
func TestEveryDescendantDies(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Fatal("python3 is needed")
	}
	eachSetup(t, func(t *testing.T, h *harness) {
		for how := range hiders("") {
			t.Run(strings.ReplaceAll(how, " ", "_"), func(t *testing.T) {
				for _, end := range []string{"timeout", "kill", "cancel"} {
					mark := newMark()
					r := shell("echo begun; " + hiders(mark)[how])
					r.ExecId = "hide-" + mark
					if end == "timeout" {
						r.Timeout = durationpb.New(300 * time.Millisecond)
					}
					ctx, cancel := context.WithCancel(testContext(t))
					s, err := h.Execute(ctx, r)
					if err != nil {
						t.Fatal(err)
					}
					if end != "timeout" {
						eventually(t, "two processes run", func() bool { return len(alive("3600."+mark)) >= 2 })
					}
					switch end {
					case "kill":
						h.signal(t, r.GetExecId(), "KILL", sandboxv1.SignalScope_SIGNAL_SCOPE_TREE)
					case "cancel":
						cancel()
					}
					got := result{}
					if end == "cancel" {
						for err == nil {
							_, err = s.Recv()
						}
					} else if got = collect(t, s.Recv, 0); got.exited == nil {
						t.Fatalf("%s: %v", end, got.err)
					}
					eventually(t, "every process is dead after "+end, func() bool { return len(alive(mark)) == 0 })
					cancel()
				}
			})
		}
	})
}

// A fork bomb dies completely and the agent lives on.
func TestForkBombDiesAndTheAgentLives(t *testing.T) {
	eachSetup(t, func(t *testing.T, h *harness) {
		mark := newMark()
		r := argv("bash", "-c", "ulimit -u 300; b() { b & b & : "+mark+"; wait; }; b")
		r.Timeout = durationpb.New(300 * time.Millisecond)
		if os.Getuid() == 0 && !strings.Contains(t.Name(), "uid") {
			// Root has no process limit: a bounded bomb instead.
			r = argv("sh", "-c", "b() { [ $1 -le 0 ] && sleep 100; b $(($1-1)) & b $(($1-1)) & : "+mark+"; wait; }; b 7")
			r.Timeout = durationpb.New(300 * time.Millisecond)
		}
		got := h.run(t, r)
		if got.exited.GetReason() != sandboxv1.ExitReason_EXIT_REASON_TIMED_OUT {
			t.Fatalf("ended %v, %v", got.exited, got.err)
		}
		eventually(t, "the bomb is gone", func() bool { return len(alive(mark)) == 0 })
		if got := h.run(t, shell("echo well")); string(got.stdout) != "well\n" {
			t.Fatalf("the agent is not well: %v", got.err)
		}
	})
}

// A background child that holds the output open does not hold the call, stays
// visible and readable, and dies with the tree.
func TestBackgroundChildDoesNotHoldTheCall(t *testing.T) {
	eachSetup(t, func(t *testing.T, h *harness) {
		mark, gate := newMark(), newGate(t)
		r := shell(fmt.Sprintf("(read x <%s; echo late; exec sleep 3600.%s) & echo early", gate, mark))
		r.ExecId = "bg"
		got := h.run(t, r) // it comes back although the child waits
		if string(got.stdout) != "early\n" || !got.exited.GetOutputOpen() || got.exited.GetExitCode() != 0 {
			t.Fatalf("%q, %v", got.stdout, got.exited)
		}
		list := func() *sandboxv1.Process {
			l, err := h.ListProcesses(testContext(t), &sandboxv1.ListProcessesRequest{})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range l.GetProcesses() {
				if p.GetExecId() == "bg" {
					return p
				}
			}
			return nil
		}
		if p := list(); p.GetExited() == nil || p.GetLiveProcesses() < 1 || p.GetPid() != 0 {
			t.Fatalf("listed as %v", p)
		}
		gate.open(t)
		s, err := h.Attach(testContext(t), &sandboxv1.AttachRequest{
			ExecId: "bg", Position: got.exited.GetPosition(), FollowUntil: sandboxv1.FollowUntil_FOLLOW_UNTIL_STREAMS_END})
		if err != nil {
			t.Fatal(err)
		}
		killed := false
		late := collect(t, func() (*sandboxv1.AttachResponse, error) {
			e, err := s.Recv()
			if e.GetOutput() != nil && !killed {
				killed = true
				if !h.signal(t, "bg", "KILL", sandboxv1.SignalScope_SIGNAL_SCOPE_TREE) {
					t.Error("no process was killed")
				}
			}
			return e, err
		}, got.exited.GetPosition())
		if string(late.stdout) != "late\n" || late.exited.GetReason() != sandboxv1.ExitReason_EXIT_REASON_EXITED {
			t.Fatalf("%q, %v, %v", late.stdout, late.exited, late.err)
		}
		if len(alive(mark)) != 0 {
			t.Error("the child is alive")
		}
		eventually(t, "it is no longer listed", func() bool { return list() == nil })
		if h.signal(t, "bg", "KILL", sandboxv1.SignalScope_SIGNAL_SCOPE_TREE) {
			t.Error("a process was killed")
		}
	})
}

// When a supervisor is killed by what it supervises, the command still ends
// and nothing of it is left.
func TestCommandEndsWhenItsSupervisorIsKilled(t *testing.T) {
	h := start(t, setup{})
	mark := newMark()
	r := shell(fmt.Sprintf("setsid sleep 3600.%s & kill -9 $PPID; sleep 3600.%s", mark, mark))
	r.Timeout = durationpb.New(500 * time.Millisecond)
	got := h.run(t, r)
	if got.exited.GetReason() != sandboxv1.ExitReason_EXIT_REASON_TIMED_OUT {
		t.Fatalf("ended %v, %v", got.exited, got.err)
	}
	eventually(t, "every process is dead", func() bool { return len(alive(mark)) == 0 })
}

// Grace: a command outlives its caller for as long as was asked, and longer
// when the pipe itself broke; an attached caller ends the wait.
func TestCommandOutlivesItsCallerForTheGracePeriod(t *testing.T) {
	h := start(t, setup{broken: 1500 * time.Millisecond})
	running := func(mark string) func() bool { return func() bool { return len(alive(mark)) > 0 } }
	gone := func(mark string) func() bool { return func() bool { return len(alive(mark)) == 0 } }
	launch := func(t *testing.T, client agentv1.AgentServiceClient, r *sandboxv1.ExecuteRequest) context.CancelFunc {
		ctx, cancel := context.WithCancel(testContext(t))
		s, err := client.Execute(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
		return cancel
	}
	t.Run("none", func(t *testing.T) {
		mark := newMark()
		cancel := launch(t, h, argv("sleep", "3600."+mark))
		cancel()
		eventually(t, "it is dead", gone(mark))
	})
	t.Run("asked for, and ended by attach", func(t *testing.T) {
		mark := newMark()
		r := argv("sleep", "5."+mark)
		r.ExecId, r.DisconnectGrace = "grace", durationpb.New(4*time.Second)
		cancel := launch(t, h, r)
		cancel()
		got := h.attach(t, "grace", 0, 0)
		if got.exited.GetReason() != sandboxv1.ExitReason_EXIT_REASON_EXITED {
			t.Fatalf("ended %v, %v", got.exited, got.err)
		}
	})
	t.Run("detached", func(t *testing.T) {
		mark := newMark()
		r := argv("sleep", "3600."+mark)
		r.ExecId, r.Detach = "detached", true
		cancel := launch(t, h, r)
		cancel()
		time.Sleep(100 * time.Millisecond) // there is no event to wait for: nothing must happen
		if !running(mark)() {
			t.Fatal("it is dead")
		}
		h.signal(t, "detached", "KILL", sandboxv1.SignalScope_SIGNAL_SCOPE_TREE)
		eventually(t, "it is dead", gone(mark))
	})
	t.Run("broken pipe", func(t *testing.T) {
		mark := newMark()
		other, pipe := h.clientOnPipe(t)
		launch(t, other, argv("sleep", "3600."+mark))
		begin := time.Now()
		_ = pipe.Close()
		eventually(t, "it is dead", gone(mark))
		if took := time.Since(begin); took < time.Second {
			t.Fatalf("it died after %v", took)
		}
	})
}

// Stopping the agent ends hidden descendants too, in bounded time.
func TestCloseEndsHiddenDescendants(t *testing.T) {
	mark := newMark()
	for _, s := range setups() {
		t.Run(s.name, func(t *testing.T) {
			h := start(t, s)
			r := shell("echo begun; " + hiders(mark)["daemon"])
			stream, err := h.Execute(testContext(t), r)
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "two processes run", func() bool { return len(alive("3600."+mark)) >= 2 })
			t.Cleanup(func() {
				if _, err := stream.Recv(); err != nil && errors.Is(err, io.EOF) {
					t.Error(err)
				}
			})
		})
		eventually(t, "every process is dead", func() bool { return len(alive(mark)) == 0 })
	}
}
