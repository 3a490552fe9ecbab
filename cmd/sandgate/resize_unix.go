//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
)

// resizes returns a channel that receives when the terminal is resized.
func resizes() (<-chan os.Signal, func()) {
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, syscall.SIGWINCH)
	return changes, func() { signal.Stop(changes) }
}
