package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"net"
	"os/signal"
	"syscall"
	"time"
)

// errNotReached is returned when a port did not become what was expected. Its exit code
// distinguishes it from a failure.
var errNotReached = errors.New("the port did not become as expected")

const notReachedCode = 3

const (
	// reachPause is the time between two connections, and reachTimeout bounds one.
	reachPause   = 250 * time.Millisecond
	reachTimeout = time.Second
	// reachClosed is how many connections in a row must fail for a port to be closed.
	// It outlasts the loss of some packets.
	reachClosed = 10
)

// reach listens, or connects until the port of such a listener is open or closed. With
// it the server verifies what a cluster's network lets pods do.
func reach(args []string) error {
	flags := flag.NewFlagSet("reach", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	listen := flags.String("listen", "", "")
	until := flags.String("until", "", "")
	within := flags.Duration("within", time.Minute, "")
	if err := flags.Parse(args); err != nil {
		return errUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	switch {
	case *listen != "" && *until == "" && flags.NArg() == 0:
		return greet(ctx, *listen)
	case *listen == "" && (*until == "open" || *until == "closed") && flags.NArg() == 1:
		ctx, cancel := context.WithTimeoutCause(ctx, *within, errNotReached)
		defer cancel()
		return awaitPort(ctx, flags.Arg(0), *until == "open")
	default:
		return errUsage
	}
}

// greet sends one byte to each peer until ctx ends.
func greet(ctx context.Context, address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		_ = conn.SetDeadline(time.Now().Add(reachTimeout))
		_, _ = conn.Write([]byte{'!'})
		_ = conn.Close()
	}
}

// awaitPort returns nil when a greeting has come from the address, or when none has
// come several times in a row.
func awaitPort(ctx context.Context, address string, open bool) error {
	for failed := 0; ; {
		got := greeted(ctx, address)
		if failed++; got {
			failed = 0
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case open && got, !open && failed == reachClosed:
			return nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(reachPause):
		}
	}
}

func greeted(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(reachTimeout))
	_, err = io.ReadFull(conn, make([]byte, 1))
	return err == nil
}
