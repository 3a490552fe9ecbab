//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
)

// resizes tells when the terminal's size changed.
func resizes() (<-chan os.Signal, func()) {
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, syscall.SIGWINCH)
	return changes, func() { signal.Stop(changes) }
}
