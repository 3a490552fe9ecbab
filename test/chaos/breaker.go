//go:build linux

package main

import (
	"context"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/test/daemon"
)

// breaker breaks the connections between the server and the agents at moments that the
// seed chooses. It shuts down the server's sockets through duplicates of their
// descriptors; with the transport "exec" it also kills the connect process in the
// sandbox.
type breaker struct {
	h      *host
	chance *rand.Rand
	mean   time.Duration
}

func (b *breaker) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(b.chance.ExpFloat64() * float64(b.mean))):
		}
		var n int
		if b.h.transport == "exec" && b.chance.IntN(2) == 0 {
			n = b.killConnect()
		} else {
			n = b.shutSocket()
		}
		b.h.tally.hop2.Add(int64(n))
	}
}

// killConnect kills one connect process and returns the number killed.
func (b *breaker) killConnect() int {
	var found []int
	for _, p := range b.h.uses.Processes() {
		if p.Connect {
			found = append(found, p.ID)
		}
	}
	if len(found) == 0 {
		return 0
	}
	if unix.Kill(found[b.chance.IntN(len(found))], unix.SIGKILL) != nil {
		return 0
	}
	return 1
}

// shutSocket shuts down one of the server's sockets to an agent, in one or both
// directions, and returns the number shut down.
func (b *breaker) shutSocket() int {
	how := []int{unix.SHUT_RDWR, unix.SHUT_RDWR, unix.SHUT_RD, unix.SHUT_WR}[b.chance.IntN(4)]
	n, _ := daemon.ShutAgentConnections(b.h.pid(), 1, how, b.chance.Shuffle) // the server may be restarting
	return n
}
