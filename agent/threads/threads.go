// Package threads keeps the agent running when the kernel refuses it new threads.
// The agent counts against the sandbox's limit of processes, which a fork bomb can
// hold full. The Go runtime starts a thread whenever all others wait in system calls,
// and ends the program if the kernel refuses one for 0.2 s. So the agent starts what
// it needs in advance (Reserve), and bounds how much of its work waits in system calls
// at a time (Slots).
package threads

import (
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// reserved is one for each slot of file calls (6, 4 lent), of walks (3, 1 lent; a
	// search has two more each) and of kills (2), which is more than 64 callers need
	// (TestAgentOutlivesItsLimit).
	reserved = 24
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
