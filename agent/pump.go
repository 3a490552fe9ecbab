package agent

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/fault"
	"github.com/sandgate/sandgate/agent/spawn"
	"github.com/sandgate/sandgate/streaming"
)

// pump reads what a command writes and notices how it ends. It is one
// goroutine that waits on one epoll descriptor, itself waited for by the Go
// runtime, so a waiting command costs no thread and a short one no hand-offs.
type pump struct {
	c      *command
	epoll  *os.File
	fd     int
	kicks  int // an eventfd: wakes the pump from outside
	log    *streaming.Log
	inputs []input

	pending []*input    // inputs taken out of the epoll set while the log is full
	roomy   atomic.Bool // there may be room again
	drained atomic.Bool // a drain time is over
	timer   *time.Timer // runs the drain time
	limit   time.Time   // end of the longest drain
	flowed  bool        // output came during this drain time
	ended   bool        // the leader is gone
	since   time.Time   // when that was noticed
	settled bool        // and its output is complete
	sealed  bool        // and nothing can write any more
	// orphaned is set when the supervisor is gone.
	orphaned bool

	mu     sync.Mutex
	closed bool // kicks is gone
}

// input is one pipe or terminal of a command.
type input struct {
	fd     int
	stream streaming.Stream
	open   bool
	out    bool // taken out of the epoll set
	empty  bool // nothing was left at the last look
}

// The tags of the epoll set: indexes of inputs come from 0 up.
const (
	tagLeader = 100 + iota
	tagReports
	tagKick
)

// How long output of others is waited for when the leader is gone: until
// nothing came for drainTime, at most drainLimit.
const (
	drainTime  = 100 * time.Millisecond
	drainLimit = time.Second
)

// killPatience is how long the end of a killed command waits for the last of
// its descendants: one in an uninterruptible wait must not hold the caller.
const killPatience = 2 * time.Second

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

// abandon frees a pump that never ran; the inputs are the caller's.
func (p *pump) abandon() {
	_ = p.epoll.Close()
	_ = unix.Close(p.kicks)
}

func (p *pump) watch(fd, tag int) {
	_ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(tag)})
}

func (p *pump) unwatch(fd int) { _ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, fd, nil) }

// kick makes the pump look at its flags. It is called from anywhere.
func (p *pump) kick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		_, _ = unix.Write(p.kicks, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

// room is Options.Room of the log.
func (p *pump) room() {
	p.roomy.Store(true)
	p.kick()
}

// run pumps until the leader is gone and every input has ended.
func (p *pump) run() {
	defer p.close()
	raw, err := p.epoll.SyscallConn()
	if err != nil {
		p.c.lost(err)
		return
	}
	err = fault.Catch(func() error { return raw.Read(p.turn) })
	if err != nil {
		p.c.lost(err)
		if p.supervised() {
			p.leave()
		}
	}
}

// turn handles what the epoll descriptor has, and reports whether the pump is
// done.
func (p *pump) turn(uintptr) bool {
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
		p.leaderEnded()
	case tagReports:
		p.report()
	default:
		p.read(&p.inputs[tag])
	}
	if p.roomy.Swap(false) && len(p.pending) > 0 {
		for _, in := range p.pending {
			in.out = false
			p.watch(in.fd, p.tag(in))
		}
		p.pending = p.pending[:0]
		if p.ended {
			p.drain()
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
	if !in.open || in.out {
		return
	}
	n, err := p.log.Fill(in.stream, func(b []byte) (int, error) {
		for {
			n, err := unix.Read(in.fd, b)
			if !errors.Is(err, unix.EINTR) {
				return max(n, 0), err
			}
		}
	})
	in.empty = false
	switch {
	case errors.Is(err, streaming.ErrFull):
		in.out = true
		p.unwatch(in.fd)
		p.pending = append(p.pending, in)
	case errors.Is(err, unix.EAGAIN):
		in.empty = true
	case err == nil && n > 0:
		p.flowed = true
	default: // the end: no writer is left, or a terminal's last one is gone
		p.end(in)
	}
}

func (p *pump) end(in *input) {
	in.open = false
	p.unwatch(in.fd)
	_ = unix.Close(in.fd)
}

func (p *pump) open() bool {
	for i := range p.inputs {
		if p.inputs[i].open {
			return true
		}
	}
	return false
}

// leaderEnded is called when the leader's pidfd says that it is gone.
func (p *pump) leaderEnded() {
	p.c.pidMu.Lock()
	end, ok, err := p.c.agent.reaper.collect(p.c.proc.Pid)
	p.c.reaped = ok || err != nil
	p.c.pidMu.Unlock()
	if err != nil {
		p.unwatch(p.c.proc.PidFD)
		p.c.fate(nil)
		p.gone()
		return
	}
	if ok {
		p.unwatch(p.c.proc.PidFD)
		p.c.fate(&end)
		p.gone()
	}
}

// report is called when the supervisor says something, or is gone.
func (p *pump) report() {
	end, ok, err := p.c.proc.ReadEnd()
	switch {
	case err != nil:
		p.unwatch(p.c.proc.Reports)
		spawn.Reap(p.c.proc.Supervisor)
		p.c.agent.reaper.forget(p.c.proc.Supervisor)
		p.orphaned = true
		if p.ended {
			return
		}
		// Its children are the agent's now, where the agent is a reaper.
		if p.c.proc.PidFD < 0 {
			p.c.fate(nil)
			p.gone()
			return
		}
		p.c.agent.reaper.adopt(p.c.proc.Pid)
		p.watch(p.c.proc.PidFD, tagLeader)
	case ok && !p.ended:
		p.c.fate(&end)
		if p.c.proc.Left() {
			p.unwatch(p.c.proc.Reports)
			p.leave()
		}
		p.gone()
	}
}

// leave has the supervisor reaped once it has ended.
func (p *pump) leave() {
	supervisor := p.c.proc.Supervisor
	p.c.proc.Leave(func() { p.c.agent.reaper.forget(supervisor) })
	p.orphaned = true
}

// gone begins the drain: what the leader wrote is in the pipes already, what
// its children write now may still belong to it.
func (p *pump) gone() {
	p.ended, p.since = true, time.Now()
	if p.c.killers.Load() > 0 {
		time.AfterFunc(killPatience, p.kick)
	}
	// Most often everything ends together: look before a timer is made. The
	// bound is for a child that never stops writing.
	for i := range p.inputs {
		in := &p.inputs[i]
		for range 64 {
			if !in.open || in.out {
				break
			}
			if p.read(in); in.empty {
				break
			}
		}
	}
	if p.open() {
		p.drain()
	}
}

// drain begins a drain time anew.
func (p *pump) drain() {
	p.flowed = false
	p.drained.Store(false)
	p.limit = time.Now().Add(drainLimit)
	if p.timer != nil {
		p.timer.Reset(drainTime)
		return
	}
	p.timer = time.AfterFunc(drainTime, func() {
		p.drained.Store(true)
		p.kick()
	})
}

// advance settles and seals the command when it is time, and reports whether
// the pump is done.
func (p *pump) advance() bool {
	if !p.ended {
		return false
	}
	open := p.open()
	if !p.settled {
		switch {
		case p.c.killers.Load() > 0 && time.Since(p.since) < killPatience:
			// Looked at again when the kill is done, or the patience.
		case !open:
			p.settled = true
		case !p.drained.Load() || len(p.pending) > 0:
		case p.flowed && time.Now().Before(p.limit):
			p.flowed = false
			p.drained.Store(false)
			p.timer.Reset(drainTime)
		default:
			p.settled = true
		}
		if p.settled {
			p.c.settle(open)
		}
	}
	if p.settled && !open && !p.sealed {
		p.sealed = true
		p.c.seal()
	}
	return p.sealed && !p.supervised()
}

// supervised reports whether the supervisor still has to be waited for: it
// stays as long as anything of the command's tree lives.
func (p *pump) supervised() bool {
	return p.c.proc.Reports >= 0 && !p.orphaned
}

func (p *pump) close() {
	// Those who wait for the end go first.
	runtime.Gosched()
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
	p.c.over()
}
