package agent

import (
	"time"

	"golang.org/x/sys/unix"
)

// tree is every process of one command, however it hides.
type tree interface {
	// kill ends all of them and returns when none is left, or false when that
	// took too long. It starts no process.
	kill() bool
	// signal sends a signal to each of them and returns how many there were.
	signal(unix.Signal) int
	// pids returns those that are alive.
	pids() []int
	// usage adds what is known of all of them together.
	usage(*usage)
	// release frees what the tree needs once it is empty. It does not block.
	release()
}

// usage is what a command took.
type usage struct {
	user, system time.Duration
	peak         int64
	whole        bool // peak is that of all processes together
	oomKills     int64
	oomKnown     bool // oomKills counts this command's kills only
}

const (
	// killTime bounds one kill: a process in an uninterruptible wait dies when
	// that is over.
	killTime = time.Minute
	// stopTime is how long the end of the sandbox waits for that of a command.
	stopTime = 5 * time.Second
)
