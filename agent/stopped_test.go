package agent

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// supervised are the setups whose commands have supervisors.
var supervised = []setup{{name: "subreaper"}, {name: "subreaper as uid 1000", uid: 1000}}

// A command whose supervisor is stopped ends as it would have, and can be killed.
func TestStoppedSupervisor(t *testing.T) {
	for _, s := range supervised {
		t.Run(s.name, func(t *testing.T) {
			h := start(t, s)
			for name, c := range map[string]struct {
				end    func(t *testing.T, id string, leader int)
				reason sandboxv1.ExitReason
				signal string
			}{
				"it ends": {func(_ *testing.T, _ string, leader int) { _ = unix.Kill(leader, unix.SIGTERM) },
					sandboxv1.ExitReason_EXIT_REASON_SIGNALED, "SIGTERM"},
				"it is killed": {func(t *testing.T, id string, _ int) { h.signal(t, id, "KILL", sandboxv1.SignalScope_SIGNAL_SCOPE_TREE) },
					sandboxv1.ExitReason_EXIT_REASON_KILLED, "SIGKILL"},
			} {
				t.Run(name, func(t *testing.T) {
					mark := newMark()
					r := argv("sleep", "3600."+mark)
					r.ExecId = "stopped-" + mark
					stream, err := h.Execute(called(t, &agentv1.CallContext{}), r)
					if err != nil {
						t.Fatal(err)
					}
					first, err := stream.Recv()
					if err != nil {
						t.Fatal(err)
					}
					leader := int(first.GetStarted().GetPid())
					supervisor := parent(t, leader)
					if err := unix.Kill(supervisor, unix.SIGSTOP); err != nil {
						t.Fatal(err)
					}
					// If it had reaped the leader before it stopped, the end would be lost.
					eventually(t, "the supervisor is ended", func() bool { return parent(t, leader) != supervisor })
					c.end(t, r.GetExecId(), leader)
					got := h.attach(t, r.GetExecId(), 0, sandboxv1.FollowUntil_FOLLOW_UNTIL_UNSPECIFIED)
					if got.exited.GetReason() != c.reason || got.exited.GetSignal() != c.signal {
						t.Errorf("it ended with %v, %v", got.exited, got.err)
					}
				})
			}
			eventually(t, "no supervisor is left", func() bool { return len(childrenOf(h.pid)) == 0 })
		})
	}
}

// A command that stops every supervisor that it sees, as fast as it can, holds up no
// other command.
func TestStopsSupervisors(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Fatal("python3 is needed")
	}
	for _, s := range supervised {
		t.Run(s.name, func(t *testing.T) {
			h := start(t, s)
			mark := newMark()
			hostile := argv("python3", "-c", `
import os, signal
while True:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = open("/proc/%s/stat" % pid).read()
            if stat.rsplit(") ", 1)[1].split()[1] == "`+strconv.Itoa(h.pid)+`" and "(sandgate-super)" in stat:
                os.kill(int(pid), signal.SIGSTOP)
        except OSError: pass
`, mark)
			hostile.ExecId, hostile.Detach = "hostile-"+mark, true
			stream, err := h.Execute(called(t, &agentv1.CallContext{}), hostile)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					for range 10 {
						got := h.run(t, shell("exit 7"))
						switch {
						case got.exited.GetReason() == sandboxv1.ExitReason_EXIT_REASON_EXITED && got.exited.GetExitCode() == 7:
						// A supervisor can be stopped between the wait and its report.
						case got.exited.GetReason() == sandboxv1.ExitReason_EXIT_REASON_LOST:
						// The leader can be stopped too, before execve.
						case got.exited == nil && status.Code(got.err) == codes.FailedPrecondition:
						default:
							t.Errorf("it ended with %v, %v", got.exited, got.err)
						}
					}
				})
			}
			all.Wait()
			h.signal(t, hostile.GetExecId(), "KILL", sandboxv1.SignalScope_SIGNAL_SCOPE_TREE)
			eventually(t, "nothing is left", func() bool { return len(alive(mark)) == 0 && len(childrenOf(h.pid)) == 0 })
			if got := h.run(t, shell("exit 7")); got.exited.GetExitCode() != 7 {
				t.Errorf("afterwards: %v, %v", got.exited, got.err)
			}
		})
	}
}

// parent returns the parent of a process.
func parent(t *testing.T, pid int) int {
	t.Helper()
	ppid, ok := parentOf(pid)
	if !ok {
		t.Fatalf("no process %d", pid)
	}
	return ppid
}

func parentOf(pid int) (int, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	ppid, err := strconv.Atoi(fields[1])
	return ppid, err == nil
}

func childrenOf(pid int) []int {
	var list []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if child, err := strconv.Atoi(e.Name()); err == nil {
			if ppid, ok := parentOf(child); ok && ppid == pid {
				list = append(list, child)
			}
		}
	}
	return list
}
