package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandgate/sandgate/agent/tree"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

// exitStatus derives how the command ended from its wait status, from the cause
// of a kill by the agent, and from the kernel's counters. open tells that processes
// still hold the output open.
func (c *command) exitStatus(open bool) *sandboxv1.Exited {
	stdout, stderr := c.log.Counts(streaming.Stdout), c.log.Counts(streaming.Stderr)
	if c.terminal {
		stdout = c.log.Counts(streaming.Terminal)
	}
	_, position := c.log.Range()
	x := &sandboxv1.Exited{
		EndTime:     timestamppb.New(c.endTime),
		WallTime:    durationpb.New(c.endTime.Sub(c.start)),
		StdoutBytes: stdout.Bytes, StdoutTruncated: stdout.Truncated,
		StderrBytes: stderr.Bytes, StderrTruncated: stderr.Truncated,
		Position: position, OutputOpen: open,
	}
	if c.end == nil {
		x.Reason = sandboxv1.ExitReason_EXIT_REASON_LOST
		x.Message = "the command's supervisor was killed; how the command ended is unknown"
		return x
	}
	u := tree.Usage{User: c.end.User, System: c.end.System}
	if aboveOwnPeak(c.end.MaxRSS) {
		u.Peak = c.end.MaxRSS
	}
	c.tree.Usage(&u)
	x.UserTime, x.SystemTime = durationpb.New(u.User), durationpb.New(u.System)
	if u.Peak > 0 {
		x.PeakMemoryBytes, x.MemoryScope = u.Peak, sandboxv1.MemoryScope_MEMORY_SCOPE_LARGEST_PROCESS
		if u.WholePeak {
			x.MemoryScope = sandboxv1.MemoryScope_MEMORY_SCOPE_COMMAND
		}
	}
	c.setReason(x, &u)
	x.Message = c.message(x.GetReason())
	return x
}

// ownPeak is the agent's own peak memory when it was last read. A child reports
// at least the peak that the agent had when the child called execve, so a lower
// figure is meaningless.
var ownPeak atomic.Int64

func aboveOwnPeak(rss int64) bool {
	if rss <= ownPeak.Load() {
		return false
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	for line := range bytes.Lines(status) {
		if value, ok := bytes.CutPrefix(line, []byte("VmHWM:")); ok {
			kb, err := strconv.ParseInt(string(bytes.TrimSuffix(bytes.TrimSpace(value), []byte(" kB"))), 10, 64)
			if err == nil {
				ownPeak.Store(kb << 10)
			}
		}
	}
	return rss > ownPeak.Load()
}

// killedCode is the exit code of a shell whose child SIGKILL ended.
const killedCode = 128 + int(unix.SIGKILL)

// setReason sets reason, exit code and signal.
func (c *command) setReason(x *sandboxv1.Exited, u *tree.Usage) {
	status := c.end.Status
	cause := c.cause.Load()
	signaled := status.Signaled()
	if signaled {
		x.Signal = unix.SignalName(unix.Signal(status.Signal()))
	}
	killed := signaled && unix.Signal(status.Signal()) == unix.SIGKILL
	byCaller := signaled && c.signals.Load()&(1<<uint(status.Signal())) != 0
	switch {
	case cause == causeTimeout && killed:
		x.Reason = sandboxv1.ExitReason_EXIT_REASON_TIMED_OUT
	case cause == causeStop && killed:
		x.Reason = sandboxv1.ExitReason_EXIT_REASON_SANDBOX_STOPPED
	case cause == causeCaller && killed, byCaller:
		x.Reason = sandboxv1.ExitReason_EXIT_REASON_KILLED
	case killed || status.Exited() && status.ExitStatus() == killedCode:
		if out, inferred := c.outOfMemory(u); out {
			x.Reason, x.Inferred = sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY, inferred
			x.Signal = unix.SignalName(unix.SIGKILL)
			return
		}
		fallthrough
	default:
		if signaled {
			x.Reason = sandboxv1.ExitReason_EXIT_REASON_SIGNALED
			return
		}
		x.Reason = sandboxv1.ExitReason_EXIT_REASON_EXITED
		x.ExitCode = proto.Int32(int32(status.ExitStatus()))
	}
}

// message names, for people, the limits of the sandbox that were hit while the
// command ran and that its reason does not show, and those that could not be
// enforced.
func (c *command) message(reason sandboxv1.ExitReason) string {
	var parts []string
	for _, text := range []string{c.unbound, c.service.pids.Message(c.refusedBefore)} {
		if text != "" {
			parts = append(parts, text)
		}
	}
	if now, ok := c.service.oom.Kills(); ok && now > c.oomsBefore && reason != sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY {
		parts = append(parts, fmt.Sprintf("meanwhile the kernel killed processes of the sandbox because it ran out of memory: %d", now-c.oomsBefore))
	}
	if network := c.service.cfg.Refusals; network != nil {
		if text := network.RefusedMessage(c.networkBefore); text != "" {
			parts = append(parts, text)
		}
	}
	return strings.Join(parts, "; ")
}

// outOfMemory reports whether the kernel killed a process of the command because
// memory ran out. Without a counter of the command's own, that is inferred from
// the sandbox's.
func (c *command) outOfMemory(u *tree.Usage) (out, inferred bool) {
	if u.OOMKnown {
		return u.OOMKills > 0, false
	}
	now, ok := c.service.oom.Kills()
	return ok && now > c.oomsBefore, true
}
