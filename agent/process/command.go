package process

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandgate/sandgate/agent/spawn"
	"github.com/sandgate/sandgate/agent/tree"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

// state is how far a command has come. It only grows.
type state uint8

const (
	// stateRunning: the leader runs.
	stateRunning state = iota
	// stateLeaderExited: the leader is gone. Its output may still be in the pipes.
	stateLeaderExited
	// stateDrained: the exit status is final and no output of the leader is
	// missing. Descendants may still run and write.
	stateDrained
	// stateSealed: no process can write output any more.
	stateSealed
	// stateLost: the pump failed, so the agent killed the command.
	stateLost
)

// command is one command, from its start until its pump ends. A command that is
// loaded from the history has no pump.
type command struct {
	service            *Service
	id                 string
	hash               [32]byte
	text               string // the beginning of the command line, for people
	unbound            string // which write prefixes do not bind it, for people
	traceParent        string // of the call that started it, if its trace is sampled
	detached, terminal bool
	disconnectGrace    time.Duration
	retention          time.Duration
	log                *streaming.Log
	proc               *spawn.Process
	tree               tree.Tree
	start              time.Time
	oomsBefore         int64 // the sandbox's counters when it started
	refusedBefore      int64
	networkBefore      int64
	pump               *pump
	stdin              *stdin
	timeout            *time.Timer

	ready   chan struct{} // closed when the start has succeeded or failed
	failed  error         // valid after ready
	drained chan struct{} // closed in stateDrained

	cause   atomic.Int32  // why the agent killed it
	killers atomic.Int32  // kills in progress
	signals atomic.Uint64 // set of signals that callers sent

	// pidMu is held while the leader is signalled, so that meanwhile its pidfd is
	// not closed and its pid not reused.
	pidMu  sync.Mutex
	reaped bool

	mu         sync.Mutex
	state      state // written by the pump's goroutine only
	end        *spawn.End
	endTime    time.Time
	exited     *sandboxv1.Exited // set in stateDrained
	followers  int
	graceTimer *time.Timer
	retired    bool // the history has the command
	logKept    bool // and its log
}

// Causes of a kill by the agent. The first one counts.
const (
	causeNone int32 = iota
	causeTimeout
	causeCaller
	causeStop
)

// kill kills all processes of the command. The command is not drained before
// that is done.
func (c *command) kill(cause int32) {
	c.cause.CompareAndSwap(causeNone, cause)
	c.killers.Add(1)
	defer func() {
		c.killers.Add(-1)
		if c.pump != nil {
			c.pump.kick()
		}
	}()
	c.tree.Kill()
}

// stop kills the command because the sandbox stops, and waits until it is drained.
func (c *command) stop() {
	late := time.After(stopTime)
	select {
	case <-c.ready:
	case <-late:
		return
	}
	if c.failed != nil {
		return
	}
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		c.service.recovery.Guard("the kill of a command", func() { c.kill(causeStop) })
	}()
	c.log.SetPolicy(streaming.Evict)
	for _, done := range []<-chan struct{}{c.drained, killed} {
		select {
		case <-done:
		case <-late:
			return
		}
	}
}

// setLeaderExited records how the leader ended, nil if that is unknown. The pump
// calls it.
func (c *command) setLeaderExited(end *spawn.End) {
	if c.timeout != nil {
		c.timeout.Stop()
	}
	c.markReaped()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state, c.end, c.endTime = stateLeaderExited, end, time.Now()
}

// setDrained publishes the exit status. The pump calls it.
func (c *command) setDrained(exited *sandboxv1.Exited) {
	// In this order, so that Active never sees an old activity and no command.
	c.service.touch()
	c.service.running.Add(-1)
	c.mu.Lock()
	c.state, c.exited = stateDrained, exited
	if c.graceTimer != nil {
		c.graceTimer.Stop()
	}
	unfollowed := c.followers == 0
	c.mu.Unlock()
	c.log.MarkExit()
	if unfollowed {
		// Background children must not wait for a reader.
		c.log.SetPolicy(streaming.Evict)
	}
	c.stdin.close()
	close(c.drained)
}

// setSealed ends the log. The pump calls it.
func (c *command) setSealed() {
	c.mu.Lock()
	c.state = stateSealed
	c.mu.Unlock()
	c.log.Seal()
}

// setLost ends a command whose pump failed.
func (c *command) setLost(err error) {
	c.service.cfg.Log.Error("lost a command", "exec_id", c.id, "error", c.service.recovery.Report("a command's pump", err))
	c.service.recovery.Guard("the kill of a command", func() { c.tree.Kill() })
	if c.state < stateLeaderExited {
		c.setLeaderExited(nil)
	}
	if c.state < stateDrained {
		exited := &sandboxv1.Exited{
			Reason: sandboxv1.ExitReason_EXIT_REASON_LOST, EndTime: timestamppb.Now(),
			Message: "the agent failed while it followed the command, and killed it",
		}
		c.service.recovery.Guard("a lost command's exit status", func() { exited = c.exitStatus(false) })
		c.setDrained(exited)
	}
	c.mu.Lock()
	c.state = stateLost
	c.mu.Unlock()
	c.log.Seal()
}

// close frees the command's descriptors and retires it. The pump calls it last.
func (c *command) close() {
	c.closePidFD()
	if c.proc.Reports >= 0 {
		_ = unix.Close(c.proc.Reports)
	}
	c.proc.Free()
	if c.terminal {
		_ = c.stdin.file.Close()
	}
	c.tree.Release()
	c.service.retire(c)
}

// markReaped records that another process may have the leader's pid.
func (c *command) markReaped() {
	c.pidMu.Lock()
	defer c.pidMu.Unlock()
	c.reaped = true
}

// closePidFD closes the leader's pidfd. No signal is sent afterwards.
func (c *command) closePidFD() {
	c.pidMu.Lock()
	defer c.pidMu.Unlock()
	c.reaped = true
	if c.proc.PidFD >= 0 {
		_ = unix.Close(c.proc.PidFD)
		c.proc.PidFD = -1
	}
}

// attach counts a follower and stops the disconnect grace. It returns false for
// a command that was retired meanwhile; then the history has it.
func (c *command) attach() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.retired {
		return false
	}
	c.followers++
	if c.graceTimer != nil {
		c.graceTimer.Stop()
		c.graceTimer = nil
	}
	return true
}

// detach removes a follower. After the last one of a running command, the
// disconnect grace starts.
func (c *command) detach(broken bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.followers--
	if c.followers > 0 {
		return
	}
	if c.state >= stateDrained {
		c.log.SetPolicy(streaming.Evict)
		c.freeLog()
		return
	}
	if c.detached {
		return
	}
	grace := c.disconnectGrace
	if broken {
		grace = max(grace, c.service.cfg.BrokenGrace)
	}
	c.graceTimer = time.AfterFunc(grace, func() {
		c.mu.Lock()
		abandoned := c.followers == 0 && c.state < stateDrained
		c.mu.Unlock()
		if abandoned {
			c.service.recovery.Guard("the kill of a command", func() { c.kill(causeCaller) })
			c.log.SetPolicy(streaming.Evict)
		}
	})
}

// setRetired records that the history has the command and, if logKept, its log.
func (c *command) setRetired(logKept bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.retired, c.logKept = true, logKept
	c.freeLog()
}

// freeLog closes a log that nothing uses any more. It requires mu.
func (c *command) freeLog() {
	if c.retired && !c.logKept && c.followers == 0 {
		c.log.Close()
	}
}

// blocks reports whether a full log blocks the command, as a pipe does.
func (c *command) blocks() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state < stateDrained && c.log.Waits()
}

func (c *command) exitedEvent() *sandboxv1.Exited {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.exited
}

func (c *command) startedEvent(position int64, joined bool) *sandboxv1.Started {
	return &sandboxv1.Started{
		ExecId: c.id, Incarnation: c.service.cfg.Incarnation, Pid: int32(c.proc.Pid),
		StartTime: timestamppb.New(c.start), Position: position, Joined: joined,
	}
}
