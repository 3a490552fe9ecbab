package agent

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"golang.org/x/sys/unix"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

// conclude says how the command ended, from its wait status, from who killed
// it, and from what the kernel counted.
func (c *command) conclude(open bool) *sandboxv1.Exited {
	stdout, stderr := c.log.Counts(streaming.Stdout), c.log.Counts(streaming.Stderr)
	if c.terminal {
		stdout = c.log.Counts(streaming.Terminal)
	}
	_, position := c.log.Range()
	x := &sandboxv1.Exited{
		EndTime:     timestamppb.New(c.ending),
		WallTime:    durationpb.New(c.ending.Sub(c.start)),
		StdoutBytes: stdout.Bytes, StdoutTruncated: stdout.Truncated,
		StderrBytes: stderr.Bytes, StderrTruncated: stderr.Truncated,
		Position: position, OutputOpen: open,
	}
	if c.end == nil {
		x.Reason = sandboxv1.ExitReason_EXIT_REASON_LOST
		x.Message = "the command's supervisor was killed; how the command ended is unknown"
		return x
	}
	u := usage{user: c.end.User, system: c.end.System}
	if aboveOwnPeak(c.end.MaxRSS) {
		u.peak = c.end.MaxRSS
	}
	c.tree.usage(&u)
	x.UserTime, x.SystemTime = durationpb.New(u.user), durationpb.New(u.system)
	if u.peak > 0 {
		x.PeakMemoryBytes, x.MemoryScope = u.peak, sandboxv1.MemoryScope_MEMORY_SCOPE_LARGEST_PROCESS
		if u.whole {
			x.MemoryScope = sandboxv1.MemoryScope_MEMORY_SCOPE_COMMAND
		}
	}
	c.reason(x, &u)
	x.Message = c.remark(x.GetReason())
	return x
}

// ownPeak is the agent's own peak memory, as it was when last looked at. A
// child that replaced itself by another program reports at least the peak that
// the agent had then, so a figure up to that says nothing.
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

// killedCode is what a shell reports for a child that SIGKILL ended.
const killedCode = 128 + int(unix.SIGKILL)

func (c *command) reason(x *sandboxv1.Exited, u *usage) {
	status := c.end.Status
	cause := c.cause.Load()
	signaled := status.Signaled()
	if signaled {
		x.Signal = unix.SignalName(unix.Signal(status.Signal()))
	}
	killed := signaled && unix.Signal(status.Signal()) == unix.SIGKILL
	byCaller := signaled && c.sent.Load()&(1<<uint(status.Signal())) != 0
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

// remark says for people which limits of the sandbox were hit while the command
// ran, where its end does not show that, and which could not be enforced.
func (c *command) remark(reason sandboxv1.ExitReason) string {
	var remarks []string
	for _, text := range []string{c.unbound, c.agent.crowd.remark(c.refused)} {
		if text != "" {
			remarks = append(remarks, text)
		}
	}
	if now, ok := c.agent.oom.read(); ok && now > c.ooms && reason != sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY {
		remarks = append(remarks, fmt.Sprintf("meanwhile the kernel killed processes of the sandbox for want of memory: %d", now-c.ooms))
	}
	return strings.Join(remarks, "; ")
}

// outOfMemory reports whether the kernel killed for want of memory: for
// certain from the command's own counter, else by inference from the sandbox's.
func (c *command) outOfMemory(u *usage) (out, inferred bool) {
	if u.oomKnown {
		return u.oomKills > 0, false
	}
	now, ok := c.agent.oom.read()
	return ok && now > c.ooms, true
}
