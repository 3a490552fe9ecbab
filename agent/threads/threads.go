// Package threads keeps the agent running when the kernel refuses it new threads.
// The agent counts against the sandbox's limit of processes, which a fork bomb can
// hold full. The Go runtime starts a thread whenever all others wait in system calls,
// and ends the program if the kernel refuses one for 0.2 s. So the agent starts what
// it needs in advance (Reserve), and bounds how much of its work waits in system calls
// at a time (Slots).
package threads

import (
	"context"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// reserved is what 64 callers need, with a margin (TestAgentOutlivesItsLimit).
	reserved = 20
	// A sandbox's limit is divided by share: no more of it is reserved.
	share = 4
	// maxProcessors bounds how many threads run Go code at a time. Without a limit
	// of CPU time that would be one for each processor of the machine.
	maxProcessors = 4
)

// limits hold the cgroup's limit of processes, as a container sees its own: v2, v1.
var limits = []string{"/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"}

// Reserve starts idle threads, which the runtime keeps. It must be called before the
// agent starts commands. In a sandbox of few processes it starts fewer.
func Reserve() {
	if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) > maxProcessors {
		runtime.GOMAXPROCS(maxProcessors)
	}
	most := limit(limits)
	var own unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NPROC, &own) == nil && own.Cur < uint64(most) {
		most = int(own.Cur) // with gVisor the limit is here
	}
	start(min(reserved, most/share))
}

// start starts n threads.
func start(n int) {
	var all sync.WaitGroup
	var locked sync.WaitGroup
	locked.Add(n)
	idle := make(chan struct{})
	for range n {
		all.Go(func() {
			// A goroutine that is locked to its thread keeps it while it waits, so
			// each of these has its own.
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			locked.Done()
			<-idle
		})
	}
	locked.Wait()
	close(idle)
	all.Wait()
}

// limit returns the smallest limit that the files state.
func limit(files []string) int {
	least := math.MaxInt
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		// "max" is no limit.
		if n, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil {
			least = min(least, n)
		}
	}
	return least
}

// Slots bounds how many goroutines do work of one kind at a time. Each of them can
// hold a thread in a system call. The holder of a slot must not wait for a caller or
// for another slot of the same Slots.
type Slots chan struct{}

// NewSlots returns n free slots.
func NewSlots(n int) Slots { return make(Slots, n) }

// Take waits for a slot. Without an error, the caller must call Release.
func (s Slots) Take(ctx context.Context) error {
	select {
	case s <- struct{}{}:
		return nil
	default:
	}
	select {
	case s <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Retake waits for a slot, however long that takes. The caller must call Release.
func (s Slots) Retake() { s <- struct{}{} }

// Release frees a slot.
func (s Slots) Release() { <-s }

// Do calls f with a slot.
func (s Slots) Do(f func()) {
	s.Retake()
	defer s.Release()
	f()
}
