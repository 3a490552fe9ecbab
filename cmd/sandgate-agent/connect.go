package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// connectWait is how long connect waits for the agent to listen, unless told.
	connectWait  = 5 * time.Second
	connectRetry = 20 * time.Millisecond
)

// connect joins standard input and output to the agent's socket. The end of
// the input is passed on, so that the other side can still answer; the end of
// the agent's side ends the process.
func connect(args []string, stdin, stdout *os.File) error {
	flags := flag.NewFlagSet("connect", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	to := flags.String("to", defaultSocket, "")
	wait := flags.Duration("wait", connectWait, "")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		return errors.Join(errUsage, err)
	}
	path, err := socketPath(*to)
	if err != nil {
		return err
	}
	conn, err := dial(path, *wait)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	go func() {
		if err := pass(conn, stdin); err != nil {
			// The input broke: the agent must see that, not wait for more.
			_ = conn.Close()
			return
		}
		_ = conn.CloseWrite()
	}()
	// A reader that went away is an end like any other, not a signal.
	signal.Ignore(unix.SIGPIPE)
	err = pass(stdout, conn)
	if err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, unix.EPIPE) {
		return fmt.Errorf("pass on the agent's bytes: %w", err)
	}
	return nil
}

func dial(path string, wait time.Duration) (*net.UnixConn, error) {
	for deadline := time.Now().Add(wait); ; time.Sleep(connectRetry) {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		if err == nil {
			return conn, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("reach the agent: %w", err)
		}
	}
}

// passSize is the buffer of one direction.
const passSize = 128 << 10

// pass copies until the end of src. The plain types keep io.Copy from choosing
// ways that do not work for every kind of descriptor.
func pass(dst io.Writer, src io.Reader) error {
	_, err := io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, make([]byte, passSize))
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	return nil
}
