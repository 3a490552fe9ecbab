package main

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"
)

// reachable listens as "reach" does, at a port that it returns.
func reachable(t *testing.T) (address string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- greet(ctx, address) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the listener: %v", err)
		}
	}
	t.Cleanup(stop)
	return address, stop
}

func TestReach(t *testing.T) {
	t.Run("a port that opens and closes", func(t *testing.T) {
		address, stop := reachable(t)
		if err := reach([]string{"--until", "open", "--within", "1m", address}); err != nil {
			t.Fatal(err)
		}
		closed := make(chan error, 1)
		go func() { closed <- reach([]string{"--until", "closed", "--within", "1m", address}) }()
		stop()
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
	})
	t.Run("a port that stays as it is", func(t *testing.T) {
		address, stop := reachable(t)
		if err := reach([]string{"--until", "open", address}); err != nil {
			t.Fatal(err)
		}
		if err := reach([]string{"--until", "closed", "--within", "300ms", address}); !errors.Is(err, errNotReached) {
			t.Errorf("open all the time: %v", err)
		}
		stop()
		if err := reach([]string{"--until", "open", "--within", "300ms", address}); !errors.Is(err, errNotReached) {
			t.Errorf("closed all the time: %v", err)
		}
	})
	t.Run("a listener that says nothing is not open", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if greeted(ctx, l.Addr().String()) {
			t.Error("it counts as open")
		}
	})
	t.Run("usage", func(t *testing.T) {
		for _, args := range [][]string{{}, {"--until", "open"}, {"--until", "ajar", "a:1"}, {"--listen", ":1", "b:2"}, {"--what"}} {
			if err := reach(args); !errors.Is(err, errUsage) {
				t.Errorf("%q: %v", args, err)
			}
		}
	})
}
