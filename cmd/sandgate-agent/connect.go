package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
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

// connect joins standard input and output to the agent's socket, by handing them
// over where that can be. The end of the input is passed on, so that the other
// side can still answer; the end of the agent's side ends the process.
func connect(args []string, stdin, stdout *os.File) error {
	flags := flag.NewFlagSet("connect", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	to := flags.String("to", defaultSocket, "")
	wait := flags.Duration("wait", connectWait, "")
	flags.Var(rlimits{}, "rlimit", "")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		return errors.Join(errUsage, err)
	}
	path, err := socketPath(*to)
	if err != nil {
		return err
	}
	// A reader that went away is an end like any other, not a signal.
	signal.Ignore(unix.SIGPIPE)
	in, out := int(stdin.Fd()), int(stdout.Fd())
	agent, handed, err := dial(path, *wait, in, out)
	if err != nil || handed {
		return err
	}
	go func() {
		if err := pass(agent, in); err != nil {
			// The input broke: the agent must see that, not wait for more.
			_ = unix.Shutdown(agent, unix.SHUT_RDWR)
			return
		}
		_ = unix.Shutdown(agent, unix.SHUT_WR)
	}()
	err = pass(out, agent)
	if err != nil && !errors.Is(err, unix.EPIPE) {
		return fmt.Errorf("pass on the agent's bytes: %w", err)
	}
	return nil
}

// dial waits until the agent listens. It returns a blocking descriptor, or true after the
// agent has taken over input and output and closed them.
func dial(path string, wait time.Duration, in, out int) (fd int, handed bool, err error) {
	for deadline := time.Now().Add(wait); ; time.Sleep(connectRetry) {
		if handOver(path, in, out) {
			return -1, true, nil
		}
		fd, err := dialOnce(path)
		if err == nil {
			return fd, false, nil
		}
		if time.Now().After(deadline) {
			return -1, false, fmt.Errorf("reach the agent: %w", err)
		}
	}
}

func dialOnce(path string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("connect to %s: %w", path, err)
	}
	return fd, nil
}

// passSize is the buffer of one direction.
const passSize = 128 << 10

// pass copies until the end of src. It blocks in the kernel and not in Go's poller, which
// would switch threads several times per message.
func pass(dst, src int) error {
	buffer := make([]byte, passSize)
	for {
		n, err := readSome(src, buffer)
		if n == 0 || err != nil {
			return err
		}
		if err := writeAll(dst, buffer[:n]); err != nil {
			return err
		}
	}
}

// readSome returns 0 at the end.
func readSome(fd int, p []byte) (int, error) {
	for {
		n, err := unix.Read(fd, p)
		switch {
		case err == nil:
			return n, nil
		case errors.Is(err, unix.ECONNRESET):
			return 0, nil
		case !again(fd, unix.POLLIN, err):
			return 0, fmt.Errorf("read: %w", err)
		}
	}
}

func writeAll(fd int, p []byte) error {
	for len(p) > 0 {
		n, err := unix.Write(fd, p)
		if err != nil && !again(fd, unix.POLLOUT, err) {
			return fmt.Errorf("write: %w", err)
		}
		p = p[max(n, 0):]
	}
	return nil
}

// again reports whether a system call should be retried. If the descriptor is
// non-blocking, it first waits until the descriptor is ready.
func again(fd int, events int16, err error) bool {
	if errors.Is(err, unix.EAGAIN) {
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, -1)
		return err == nil || errors.Is(err, unix.EINTR)
	}
	return errors.Is(err, unix.EINTR)
}
