//go:build unix

package terminal

import (
	"os"
	"os/signal"
	"syscall"
)

// Resizes returns a channel that receives when the terminal is resized.
func Resizes() (<-chan os.Signal, func()) {
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, syscall.SIGWINCH)
	return changes, func() { signal.Stop(changes) }
}
