package spawn

import (
	"errors"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxFreeStacks is how many stacks are kept for reuse. To unmap one is expensive,
// because it interrupts every processor that runs a process with the same memory.
const maxFreeStacks = 4

var stackPool struct {
	mu      sync.Mutex
	free    [][]byte
	exiting []exitingSupervisor
	timer   *time.Timer
}

// exitingSupervisor is a supervisor that is about to exit, and its memory.
type exitingSupervisor struct {
	pid    int
	memory []byte
	reaped func()
}

// reapDelay is when exiting supervisors are reaped, unless a start comes first.
const reapDelay = 20 * time.Millisecond

func takeStack() ([]byte, error) {
	stackPool.mu.Lock()
	reapExited()
	if n := len(stackPool.free); n > 0 {
		mem := stackPool.free[n-1]
		stackPool.free = stackPool.free[:n-1]
		stackPool.mu.Unlock()
		(*childStack)(unsafe.Pointer(&mem[0])).child = child{}
		return mem, nil
	}
	stackPool.mu.Unlock()
	return unix.Mmap(-1, 0, (int(unsafe.Sizeof(childStack{}))+4095)&^4095, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
}

func putStack(mem []byte) {
	stackPool.mu.Lock()
	defer stackPool.mu.Unlock()
	putStackLocked(mem)
}

func putStackLocked(mem []byte) {
	if len(stackPool.free) < maxFreeStacks {
		stackPool.free = append(stackPool.free, mem)
		return
	}
	_ = unix.Munmap(mem)
}

// reapExited reaps the supervisors that have exited. It requires the lock.
func reapExited() {
	running := stackPool.exiting[:0]
	for _, l := range stackPool.exiting {
		pid, err := unix.Wait4(l.pid, nil, unix.WNOHANG|unix.WALL, nil)
		if pid == 0 || errors.Is(err, unix.EINTR) {
			running = append(running, l)
			continue
		}
		l.reaped()
		putStackLocked(l.memory)
	}
	clear(stackPool.exiting[len(running):])
	stackPool.exiting = running
}

func reapDelayed() {
	stackPool.mu.Lock()
	defer stackPool.mu.Unlock()
	if reapExited(); len(stackPool.exiting) > 0 {
		stackPool.timer.Reset(reapDelay)
	}
}

// Exiting reports whether the supervisor has reported that no descendant is left
// and that it exits.
func (p *Process) Exiting() bool { return p.exiting }

// ReapLater must be called once for a supervisor that is Exiting. It does not block:
// the supervisor is reaped after it has exited. Then reaped is called, which must not
// start a process.
func (p *Process) ReapLater(reaped func()) {
	stackPool.mu.Lock()
	defer stackPool.mu.Unlock()
	stackPool.exiting = append(stackPool.exiting, exitingSupervisor{p.Supervisor, p.memory, reaped})
	p.memory = nil
	if stackPool.timer == nil {
		stackPool.timer = time.AfterFunc(reapDelay, reapDelayed)
	} else if len(stackPool.exiting) == 1 {
		stackPool.timer.Reset(reapDelay)
	}
}

// Free frees the memory of the supervisor. It must be called after Reap or
// ReapLater, and without a supervisor at any time. It may be called again.
func (p *Process) Free() {
	if p.memory != nil {
		putStack(p.memory)
		p.memory = nil
	}
}

// Reap waits until a supervisor exits. It exits without a signal, so an ordinary
// wait does not find it.
func Reap(pid int) {
	for {
		if _, err := unix.Wait4(pid, nil, unix.WALL, nil); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
