package process

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/fault"
	"github.com/sandgate/sandgate/agent/spawn"
	"github.com/sandgate/sandgate/streaming"
)

// pump reads a command's output and notices its end. It is one goroutine that
// waits on one epoll descriptor, which the Go runtime polls in turn. So a waiting
// command costs no thread, and a short one no hand-over between goroutines.
type pump struct {
	c      *command
	epoll  *os.File
	fd     int
	kicks  int // an eventfd that wakes the pump
	log    *streaming.Log
	inputs []input

	pending   []*input    // inputs removed from the epoll set while the log is full
	hasRoom   atomic.Bool // the log may have room again
	drainOver atomic.Bool // drainTime has passed
	timer     *time.Timer // sets drainOver
	limit     time.Time   // when drainLimit ends
	flowed    bool        // output came during this drainTime

	supervisorGone bool

	mu     sync.Mutex
	closed bool // kicks is closed
}

// input is one pipe or terminal of a command.
type input struct {
	fd     int
	stream streaming.Stream
	open   bool
	paused bool // removed from the epoll set
	empty  bool // the last read found nothing
	grown  bool // pipeSize was requested
}

// Tags of the epoll set. Inputs have their indexes, from 0 up.
const (
	tagLeader = 100 + iota
	tagReports
	tagKick
)

// After the leader exits, the pump waits for output of other processes until none
// came for drainTime, at most for drainLimit.
const (
	drainTime  = 100 * time.Millisecond
	drainLimit = time.Second
)

// killGrace is how long the exit status of a killed command waits for the last
// descendants. One in an uninterruptible wait must not hold up the caller.
const killGrace = 2 * time.Second

// closeDelay is how long the pump keeps its descriptors after the end. Closing them
// would delay the callers that wait for the exit status.
const closeDelay = 3 * time.Millisecond

func newPump(c *command, inputs []input) (*pump, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	kicks, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("create eventfd: %w", err)
	}
	_ = unix.SetNonblock(fd, true)
	p := &pump{c: c, fd: fd, kicks: kicks, inputs: inputs}
	p.epoll = os.NewFile(uintptr(fd), "epoll")
	p.watch(kicks, tagKick)
	for i := range p.inputs {
		p.inputs[i].open = true
		p.watch(p.inputs[i].fd, i)
	}
	return p, nil
}

// abandon frees a pump that never ran. The inputs belong to the caller.
func (p *pump) abandon() {
	_ = p.epoll.Close()
	_ = unix.Close(p.kicks)
}

func (p *pump) watch(fd, tag int) {
	_ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(tag)})
}

func (p *pump) unwatch(fd int) { _ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, fd, nil) }

// kick wakes the pump from any goroutine.
func (p *pump) kick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		_, _ = unix.Write(p.kicks, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

// logHasRoom is the Options.Room of the log.
func (p *pump) logHasRoom() {
	p.hasRoom.Store(true)
	p.kick()
}

// run pumps until the command is sealed.
func (p *pump) run() {
	defer p.close()
	raw, err := p.epoll.SyscallConn()
	if err != nil {
		p.c.setLost(err)
		return
	}
	err = fault.Catch(func() error { return raw.Read(p.poll) })
	if err != nil {
		p.c.setLost(err)
		if p.supervised() {
			p.releaseSupervisor()
		}
	}
}

// poll handles the pending events, and reports whether the pump is done.
func (p *pump) poll(uintptr) bool {
	var events [8]unix.EpollEvent
	for {
		n, err := unix.EpollWait(p.fd, events[:], 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n <= 0 {
			return false
		}
		for i := range n {
			p.handle(int(events[i].Fd))
		}
		if p.advance() {
			return true
		}
	}
}

func (p *pump) handle(tag int) {
	switch tag {
	case tagKick:
		var b [8]byte
		_, _ = unix.Read(p.kicks, b[:])
	case tagLeader:
		p.collectLeader()
	case tagReports:
		p.readReport()
	default:
		p.read(&p.inputs[tag])
	}
	if p.hasRoom.Swap(false) && len(p.pending) > 0 {
		for _, in := range p.pending {
			in.paused = false
			p.watch(in.fd, p.tag(in))
		}
		p.pending = p.pending[:0]
		if p.c.state > stateRunning {
			p.startDrain()
		}
	}
}

func (p *pump) tag(in *input) int {
	for i := range p.inputs {
		if &p.inputs[i] == in {
			return i
		}
	}
	return -1
}

// read moves what an input holds into the log, once.
func (p *pump) read(in *input) {
	if !in.open || in.paused {
		return
	}
	filled := false
	n, err := p.log.Fill(in.stream, func(b []byte) (int, error) {
		for {
			n, err := unix.Read(in.fd, b)
			if !errors.Is(err, unix.EINTR) {
				filled = n == len(b)
				return max(n, 0), err
			}
		}
	})
	if filled && !in.grown {
		in.grown = true
		_, _ = unix.FcntlInt(uintptr(in.fd), unix.F_SETPIPE_SZ, pipeSize) // fails for a terminal
	}
	in.empty = false
	switch {
	case errors.Is(err, streaming.ErrFull):
		in.paused = true
		p.unwatch(in.fd)
		p.pending = append(p.pending, in)
	case errors.Is(err, unix.EAGAIN):
		in.empty = true
	case err == nil && n > 0:
		p.flowed = true
	default: // no writer is left
		in.open = false
		p.unwatch(in.fd)
		_ = unix.Close(in.fd)
	}
}

func (p *pump) open() bool {
	for i := range p.inputs {
		if p.inputs[i].open {
			return true
		}
	}
	return false
}

// collectLeader is called when the leader's pidfd becomes readable.
func (p *pump) collectLeader() {
	c := p.c
	c.pidMu.Lock()
	end, ok, err := c.service.reaper.Collect(c.proc.Pid)
	c.reaped = ok || err != nil
	c.pidMu.Unlock()
	switch {
	case err != nil:
		p.unwatch(c.proc.PidFD)
		p.leaderExited(nil)
	case ok:
		p.unwatch(c.proc.PidFD)
		p.leaderExited(&end)
	}
}

// readReport is called when the supervisor reports something or has died.
func (p *pump) readReport() {
	c := p.c
	end, ok, err := c.proc.ReadEnd()
	switch {
	case err != nil:
		p.unwatch(c.proc.Reports)
		spawn.Reap(c.proc.Supervisor)
		c.service.reaper.Forget(c.proc.Supervisor)
		p.supervisorGone = true
		if c.state > stateRunning {
			return
		}
		// The leader is now a child of the agent, if the agent is a subreaper.
		if c.proc.PidFD < 0 {
			c.service.reaper.Forget(c.proc.Pid)
			p.leaderExited(nil)
			return
		}
		p.watch(c.proc.PidFD, tagLeader)
	case ok && c.state == stateRunning:
		c.service.reaper.Forget(c.proc.Pid) // the supervisor has reaped it
		if c.proc.Exiting() {
			p.unwatch(c.proc.Reports)
			p.releaseSupervisor()
		}
		p.leaderExited(&end)
	}
}

// releaseSupervisor has an exiting supervisor reaped in the background.
func (p *pump) releaseSupervisor() {
	supervisor := p.c.proc.Supervisor
	p.c.proc.ReapLater(func() { p.c.service.reaper.Forget(supervisor) })
	p.supervisorGone = true
}

// leaderExited records the end of the leader and drains the inputs: output of the
// leader is in the pipes already, and output that its children write now may
// still belong to it.
func (p *pump) leaderExited(end *spawn.End) {
	p.c.setLeaderExited(end)
	if p.c.killers.Load() > 0 {
		time.AfterFunc(killGrace, p.kick)
	}
	// Usually all processes end together: read before a timer is made. The loop is
	// bounded because a child may never stop writing.
	for i := range p.inputs {
		in := &p.inputs[i]
		for range 64 {
			if !in.open || in.paused {
				break
			}
			if p.read(in); in.empty {
				break
			}
		}
	}
	if p.open() {
		p.startDrain()
	}
}

func (p *pump) startDrain() {
	p.limit = time.Now().Add(drainLimit)
	if p.timer == nil {
		p.timer = time.AfterFunc(drainTime, func() {
			p.drainOver.Store(true)
			p.kick()
		})
	}
	p.extendDrain()
}

// extendDrain waits for another drainTime.
func (p *pump) extendDrain() {
	p.flowed = false
	p.drainOver.Store(false)
	p.timer.Reset(drainTime)
}

// advance moves the command to its next states when their conditions hold, and
// reports whether the pump is done.
func (p *pump) advance() bool {
	c := p.c
	if c.state == stateRunning {
		return false
	}
	open := p.open()
	if c.state == stateLeaderExited && p.isDrained(open) {
		c.setDrained(c.exitStatus(open))
	}
	if c.state == stateDrained && !open {
		c.setSealed()
	}
	return c.state >= stateSealed && !p.supervised()
}

// isDrained reports whether the exit status can be published.
func (p *pump) isDrained(open bool) bool {
	switch {
	case p.c.killers.Load() > 0 && time.Since(p.c.endTime) < killGrace:
		return false // a kick comes when the kill is done or killGrace over
	case !open:
		return true
	case !p.drainOver.Load() || len(p.pending) > 0:
		return false
	case p.flowed && time.Now().Before(p.limit):
		p.extendDrain()
		return false
	}
	return true
}

// supervised reports whether the supervisor still runs. It runs as long as any
// process of the command's tree does.
func (p *pump) supervised() bool {
	return p.c.proc.Reports >= 0 && !p.supervisorGone
}

func (p *pump) close() {
	time.Sleep(closeDelay)
	p.mu.Lock()
	p.closed = true
	_ = unix.Close(p.kicks)
	p.mu.Unlock()
	if p.timer != nil {
		p.timer.Stop()
	}
	for i := range p.inputs {
		if p.inputs[i].open {
			_ = unix.Close(p.inputs[i].fd)
		}
	}
	_ = p.epoll.Close()
	p.c.close()
}
