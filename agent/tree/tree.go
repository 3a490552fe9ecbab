// Package tree finds, signals and kills all processes of a command: the leader
// and every descendant, however it detaches.
//
// Where the agent has a delegated cgroup v2 directory, each command has a cgroup
// of its own (Cgroups). Elsewhere each command has a supervisor that is a
// subreaper (Subreaper). The Reaper collects the exit statuses of both kinds.
package tree

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/threads"
)

// Tree is all processes of one command.
type Tree interface {
	// Kill kills all of them. It returns true once none is left, and false if
	// that takes more than a minute. It starts no process.
	Kill() bool
	// Signal sends a signal to each process and returns how many received it.
	Signal(unix.Signal) int
	// Pids returns the live processes.
	Pids() []int
	// Usage adds to u what the kernel counted for all processes together.
	Usage(u *Usage)
	// Release frees the resources of an empty tree. It does not block.
	Release()
}

// Usage is the resources that a command used.
type Usage struct {
	User, System time.Duration
	Peak         int64 // peak memory in bytes, 0 if unknown
	WholePeak    bool  // Peak is that of all processes together
	OOMKills     int64
	OOMKnown     bool // OOMKills counts this command's kills only
}

// killTime bounds one kill. A process in an uninterruptible wait dies later, when
// that wait is over.
const killTime = time.Minute

// killing bounds the threads that kill at a time, of all commands together.
var killing = threads.NewSlots(2, 0)

// Empty is a tree without processes.
type Empty struct{}

var _ Tree = Empty{}

// Kill returns true.
func (Empty) Kill() bool { return true }

// Signal returns 0.
func (Empty) Signal(unix.Signal) int { return 0 }

// Pids returns nil.
func (Empty) Pids() []int { return nil }

// Usage adds nothing.
func (Empty) Usage(*Usage) {}

// Release does nothing.
func (Empty) Release() {}
