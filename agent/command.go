package agent

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandgate/sandgate/agent/spawn"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

// command is one command from its start until its end is forgotten.
type command struct {
	agent              *Agent
	id                 string
	hash               [32]byte
	text               string // the beginning of the command, for people
	unbound            string // which write prefixes do not bind it, for people
	detached, terminal bool
	patience           time.Duration // disconnect_grace
	retention          time.Duration
	log                *streaming.Log
	proc               *spawn.Process
	tree               tree
	start              time.Time
	ooms               int64
	refused            int64 // processes, before it began
	pump               *pump
	ready              chan struct{} // closed when it runs or failed to
	failed             error         // under ready
	settled            chan struct{} // closed when the leader is gone and exited is set
	stdin              *stdin

	cause   atomic.Int32 // who killed it
	killers atomic.Int32 // kills under way
	sent    atomic.Uint64
	timeout *time.Timer

	// pidMu is held while the leader is signalled, so that its descriptor is not
	// closed, and its pid not freed, in between.
	pidMu  sync.Mutex
	reaped bool

	mu        sync.Mutex
	followers int
	grace     *time.Timer
	end       *spawn.End // nil with fated: unknown
	fated     bool
	ending    time.Time
	exited    *sandboxv1.Exited
	retired   bool // the agent keeps its end elsewhere
	kept      bool // and its log
}

// Causes of an end, the first of which counts.
const (
	causeNone int32 = iota
	causeTimeout
	causeCaller
	causeStop
)

// kill ends every process of the command for a cause. The command's end is not
// told before that is done.
func (c *command) kill(cause int32) bool {
	c.cause.CompareAndSwap(causeNone, cause)
	c.killers.Add(1)
	defer func() {
		c.killers.Add(-1)
		if c.pump != nil {
			c.pump.kick()
		}
	}()
	return c.tree.kill()
}

// stop kills the command because the sandbox stops and waits for its end.
func (c *command) stop() {
	<-c.ready
	if c.failed != nil {
		return
	}
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		c.agent.recovery.guard("the kill of a command", func() { c.kill(causeStop) })
	}()
	c.log.SetPolicy(streaming.Evict)
	late := time.After(stopTime)
	for _, done := range []<-chan struct{}{c.settled, killed} {
		select {
		case <-done:
		case <-late:
			return
		}
	}
}

// fate is told how the leader ended, nil when that cannot be known. It runs on
// the pump.
func (c *command) fate(end *spawn.End) {
	if c.timeout != nil {
		c.timeout.Stop()
	}
	c.markReaped()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end, c.fated, c.ending = end, true, time.Now()
}

// lost ends a command whose pump failed: nothing watches it any more.
func (c *command) lost(err error) {
	c.agent.cfg.Log.Error("lost sight of a command", "exec_id", c.id, "error", c.agent.recovery.report("a command's pump", err))
	c.agent.recovery.guard("the kill of a command", func() { c.tree.kill() })
	c.mu.Lock()
	fated, settled := c.fated, c.exited != nil
	c.mu.Unlock()
	if !fated {
		c.fate(nil)
	}
	if !settled {
		exited := &sandboxv1.Exited{
			Reason: sandboxv1.ExitReason_EXIT_REASON_LOST, EndTime: timestamppb.Now(),
			Message: "the agent failed while it followed the command, and killed it",
		}
		c.agent.recovery.guard("a lost command's end", func() { exited = c.conclude(false) })
		c.finish(exited)
	}
	c.seal()
}

// settle makes the end known. It runs on the pump.
func (c *command) settle(open bool) { c.finish(c.conclude(open)) }

func (c *command) finish(exited *sandboxv1.Exited) {
	c.agent.running.Add(-1)
	c.agent.touch()
	c.mu.Lock()
	c.exited = exited
	if c.grace != nil {
		c.grace.Stop()
	}
	alone := c.followers == 0
	c.mu.Unlock()
	c.log.Settle()
	if alone {
		// Nobody waits for what background children write.
		c.log.SetPolicy(streaming.Evict)
	}
	c.stdin.close()
	close(c.settled)
}

// seal ends the log: nothing can write to it any more.
func (c *command) seal() { c.log.Seal() }

// over is told that the pump ends: the command's descriptors can go.
func (c *command) over() {
	c.releasePid()
	if c.proc.Reports >= 0 {
		_ = unix.Close(c.proc.Reports)
	}
	c.proc.Free()
	if c.terminal {
		_ = c.stdin.file.Close()
	}
	c.tree.release()
	c.agent.retire(c)
}

// markReaped notes that the leader's pid may be another process's.
func (c *command) markReaped() {
	c.pidMu.Lock()
	defer c.pidMu.Unlock()
	c.reaped = true
}

// releasePid closes the leader's descriptor. No signal is sent afterwards.
func (c *command) releasePid() {
	c.pidMu.Lock()
	defer c.pidMu.Unlock()
	c.reaped = true
	if c.proc.PidFD >= 0 {
		_ = unix.Close(c.proc.PidFD)
		c.proc.PidFD = -1
	}
}

// attach counts a follower; it ends the wait for a lost caller. It reports
// false for a command that was retired meanwhile: the agent has its end.
func (c *command) attach() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.retired {
		return false
	}
	c.followers++
	if c.grace != nil {
		c.grace.Stop()
		c.grace = nil
	}
	return true
}

// detach is called when a follower leaves. When it was the last one of a
// running command, the grace begins.
func (c *command) detach(broken bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.followers--
	if c.followers > 0 {
		return
	}
	if c.exited != nil {
		c.log.SetPolicy(streaming.Evict)
		c.free()
		return
	}
	if c.detached {
		return
	}
	grace := c.patience
	if broken {
		grace = max(grace, c.agent.cfg.BrokenGrace)
	}
	c.grace = time.AfterFunc(grace, func() {
		c.mu.Lock()
		alone := c.followers == 0 && c.exited == nil
		c.mu.Unlock()
		if alone {
			c.agent.recovery.guard("the kill of a command", func() { c.kill(causeCaller) })
			c.log.SetPolicy(streaming.Evict)
		}
	})
}

// leave is called when the agent keeps the command's end, and perhaps its log,
// apart from the command.
func (c *command) leave(kept bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retired, c.kept = true, kept
	c.free()
}

// waits reports whether the command waits for its fastest reader, as it would
// for a pipe's.
func (c *command) waits() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.exited == nil && c.log.Waits()
}

// free drops the log once nobody reads it any more. It needs mu.
func (c *command) free() {
	if c.retired && !c.kept && c.followers == 0 {
		c.log.Close()
	}
}

func (c *command) started(position int64, joined bool) *sandboxv1.Started {
	return &sandboxv1.Started{
		ExecId: c.id, Incarnation: c.agent.cfg.Incarnation, Pid: int32(c.proc.Pid),
		StartTime: timestamppb.New(c.start), Position: position, Joined: joined,
	}
}

// signal sends a signal to a part of the command.
func (c *command) signal(sig unix.Signal, scope sandboxv1.SignalScope) bool {
	switch scope {
	case sandboxv1.SignalScope_SIGNAL_SCOPE_LEADER, sandboxv1.SignalScope_SIGNAL_SCOPE_GROUP:
		select {
		case <-c.settled:
			return false
		default:
		}
		c.sent.Or(1 << uint(sig))
		return c.signalLeader(sig, scope == sandboxv1.SignalScope_SIGNAL_SCOPE_GROUP)
	default:
		if sig == unix.SIGKILL {
			n := len(c.tree.pids())
			if n > 0 {
				c.sent.Or(1 << uint(sig))
				c.kill(causeCaller)
			}
			return n > 0
		}
		c.sent.Or(1 << uint(sig))
		return c.tree.signal(sig) > 0
	}
}

// pidfdSignalGroup makes pidfd_send_signal reach the leader's process group
// (PIDFD_SIGNAL_PROCESS_GROUP, since Linux 6.9).
const pidfdSignalGroup = 4

// signalLeader signals the leader or its process group. It goes by the pidfd,
// because a pid may be another process's once the leader was reaped.
func (c *command) signalLeader(sig unix.Signal, group bool) bool {
	c.pidMu.Lock()
	defer c.pidMu.Unlock()
	flags, pid := 0, c.proc.Pid
	if group {
		flags, pid = pidfdSignalGroup, -pid
	}
	if c.proc.PidFD >= 0 {
		err := unix.PidfdSendSignal(c.proc.PidFD, sig, nil, flags)
		tooOld := errors.Is(err, unix.ENOSYS) || group && errors.Is(err, unix.EINVAL)
		if !tooOld && !errors.Is(err, unix.EPERM) { // a filter's answer
			return err == nil
		}
	}
	// Until the leader is reaped, the pid is its own.
	return !c.reaped && unix.Kill(pid, sig) == nil
}
