package spawn

import (
	"errors"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Rooms are kept for the next children: to take one away is dear, because every
// processor that runs one of those who share the memory must be told.
const keptRooms = 4

var rooms struct {
	mu      sync.Mutex
	free    [][]byte
	leaving []leaver
	timer   *time.Timer
}

// leaver is a supervisor that is about to end, and what it still stands on.
type leaver struct {
	pid    int
	memory []byte
	gone   func()
}

// leaveTime is when supervisors that have left are looked for, unless a start
// comes first.
const leaveTime = 20 * time.Millisecond

func takeRoom() ([]byte, error) {
	rooms.mu.Lock()
	collect()
	if n := len(rooms.free); n > 0 {
		mem := rooms.free[n-1]
		rooms.free = rooms.free[:n-1]
		rooms.mu.Unlock()
		(*room)(unsafe.Pointer(&mem[0])).child = child{}
		return mem, nil
	}
	rooms.mu.Unlock()
	return unix.Mmap(-1, 0, (int(unsafe.Sizeof(room{}))+4095)&^4095, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
}

func giveRoom(mem []byte) {
	rooms.mu.Lock()
	defer rooms.mu.Unlock()
	giveRoomLocked(mem)
}

func giveRoomLocked(mem []byte) {
	if len(rooms.free) < keptRooms {
		rooms.free = append(rooms.free, mem)
		return
	}
	_ = unix.Munmap(mem)
}

// collect reaps the supervisors that have ended by now. It needs the lock.
func collect() {
	still := rooms.leaving[:0]
	for _, l := range rooms.leaving {
		pid, err := unix.Wait4(l.pid, nil, unix.WNOHANG|unix.WALL, nil)
		if pid == 0 || errors.Is(err, unix.EINTR) {
			still = append(still, l)
			continue
		}
		l.gone()
		giveRoomLocked(l.memory)
	}
	clear(rooms.leaving[len(still):])
	rooms.leaving = still
}

func collectLate() {
	rooms.mu.Lock()
	defer rooms.mu.Unlock()
	if collect(); len(rooms.leaving) > 0 {
		rooms.timer.Reset(leaveTime)
	}
}

// Left reports whether the supervisor has said that it goes, because nothing is
// left below it.
func (p *Process) Left() bool { return p.left }

// Leave is called, once, for a supervisor that has Left. It does not wait: the
// supervisor is reaped when it has ended, and then gone is called, which must
// not start anything.
func (p *Process) Leave(gone func()) {
	rooms.mu.Lock()
	defer rooms.mu.Unlock()
	rooms.leaving = append(rooms.leaving, leaver{p.Supervisor, p.memory, gone})
	p.memory = nil
	if rooms.timer == nil {
		rooms.timer = time.AfterFunc(leaveTime, collectLate)
	} else if len(rooms.leaving) == 1 {
		rooms.timer.Reset(leaveTime)
	}
}

// Free gives back what the supervisor needed. It must be called once the
// supervisor was reaped or has been told to Leave, and at once without one; it
// may be called again.
func (p *Process) Free() {
	if p.memory != nil {
		giveRoom(p.memory)
		p.memory = nil
	}
}

// Reap waits for a supervisor's end. Its end sends no signal, so that an
// ordinary wait would not see it.
func Reap(pid int) {
	for {
		if _, err := unix.Wait4(pid, nil, unix.WALL, nil); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
