package kube

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandgate/sandgate/providers"
)

// noLeaks fails a test that leaves goroutines behind. client-go takes half a
// minute to leave a connection that was cut while a stream was made.
func noLeaks(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		err := goleak.Find(before)
		for late := time.Now().Add(45 * time.Second); err != nil && time.Now().Before(late); {
			err = goleak.Find(before)
		}
		if err != nil {
			t.Error(err)
		}
	})
}

var inPod = Container{Namespace: "ns", Pod: "pod", Name: "main"}

const waitTimeout = 20 * time.Second

// tunnelTo opens a tunnel to a program.
func tunnelTo(t *testing.T, run program, then func(t *testing.T, s *execServer, e *Executor, conn net.Conn)) {
	t.Helper()
	s, e := newExecServer(t, run)
	ctx, cancel := context.WithTimeoutCause(t.Context(), waitTimeout, errors.New("the tunnel did not open"))
	defer cancel()
	conn, err := e.Tunnel(ctx, inPod, []string{"program"})
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(waitTimeout)); err != nil {
		t.Error(err)
	}
	then(t, s, e, conn)
	if err := conn.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// The end of what is written is seen inside, and the answer to it still comes.
func TestTunnelHalfClose(t *testing.T) {
	tunnelTo(t, func(stdin io.Reader, stdout, _ io.Writer, _ <-chan struct{}) int {
		_, _ = io.WriteString(stdout, "ready\n")
		all, err := io.ReadAll(stdin)
		fmt.Fprintf(stdout, "%q, %v\n", all, err)
		return 0
	}, func(t *testing.T, _ *execServer, _ *Executor, conn net.Conn) {
		if _, err := io.WriteString(conn, "some input"); err != nil {
			t.Fatal(err)
		}
		closer, ok := conn.(interface{ CloseWrite() error })
		if !ok {
			t.Fatal("it has no CloseWrite")
		}
		for range 2 {
			if err := closer.CloseWrite(); err != nil && !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("close writing: %v", err)
			}
		}
		if n, err := conn.Write([]byte("more")); err == nil {
			t.Errorf("%d bytes were written after the end", n)
		}
		got, err := io.ReadAll(conn)
		if err != nil || string(got) != "ready\n\"some input\", <nil>\n" {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// Every byte arrives, in both directions at once, in order.
func TestTunnelCarriesBytes(t *testing.T) {
	const size = 8 << 20
	source := rand.NewChaCha8([32]byte{1})
	data := make([]byte, size)
	_, _ = source.Read(data)
	tunnelTo(t, func(stdin io.Reader, stdout, _ io.Writer, _ <-chan struct{}) int {
		_, _ = io.WriteString(stdout, "ready\n")
		_, _ = io.CopyBuffer(stdout, stdin, make([]byte, 4096))
		return 0
	}, func(t *testing.T, _ *execServer, _ *Executor, conn net.Conn) {
		sent := make(chan error, 1)
		go func() {
			_, err := io.Copy(conn, bytes.NewReader(data))
			sent <- errors.Join(err, conn.(interface{ CloseWrite() error }).CloseWrite())
		}()
		got, err := io.ReadAll(conn)
		if err := errors.Join(err, <-sent); err != nil {
			t.Fatal(err)
		}
		got = bytes.TrimPrefix(got, []byte("ready\n"))
		if sha256.Sum256(got) != sha256.Sum256(data) {
			t.Errorf("%d bytes came that are not the %d sent", len(got), len(data))
		}
	})
}

// The error contains how a command ended, and its standard error output.
func TestTunnelReportsHowItEnded(t *testing.T) {
	tunnelTo(t, func(stdin io.Reader, stdout, stderr io.Writer, _ <-chan struct{}) int {
		_, _ = io.WriteString(stdout, "ready\n")
		_, _ = stdin.Read(make([]byte, 1))
		_, _ = io.WriteString(stderr, "because of this\n")
		return 3
	}, func(t *testing.T, _ *execServer, _ *Executor, conn net.Conn) {
		_, _ = conn.Write([]byte("x"))
		got, err := io.ReadAll(conn)
		if string(got) != "ready\n" || !errors.Is(err, providers.ErrUnavailable) {
			t.Errorf("%q, %v", got, err)
		}
		for _, part := range []string{"code 3", "because of this", "ns/pod"} {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%q is not in %v", part, err)
			}
		}
	})
}

// A connection that breaks is no end of the command.
func TestBrokenTunnelIsNoEndOfTheCommand(t *testing.T) {
	tunnelTo(t, func(stdin io.Reader, stdout, _ io.Writer, _ <-chan struct{}) int {
		_, _ = io.WriteString(stdout, "ready\n")
		_, _ = io.Copy(io.Discard, stdin)
		return 0
	}, func(t *testing.T, s *execServer, _ *Executor, conn net.Conn) {
		if _, err := io.ReadFull(conn, make([]byte, 6)); err != nil {
			t.Fatal(err)
		}
		s.CloseClientConnections()
		s.cut()
		if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil {
			t.Errorf("%d bytes, %v", n, err)
		}
	})
}

// A command that goes on after its input has ended is left behind, in time.
func TestTunnelLeavesACommandThatDoesNotEnd(t *testing.T) {
	tunnelTo(t, func(_ io.Reader, stdout, _ io.Writer, gone <-chan struct{}) int {
		_, _ = io.WriteString(stdout, "ready\n")
		for {
			if _, err := stdout.Write([]byte("and on")); err != nil {
				return 0
			}
			select {
			case <-gone:
				return 0
			case <-time.After(time.Millisecond):
			}
		}
	}, func(t *testing.T, _ *execServer, e *Executor, conn net.Conn) {
		began := time.Now()
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > closeGrace/2 {
			t.Errorf("closing took %v", took)
		}
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("read: %v", err)
		}
		if _, err := conn.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("write: %v", err)
		}
		e.Close()
		if took := time.Since(began); took > 3*closeGrace {
			t.Errorf("it was there for %v", took)
		}
		if _, err := e.Tunnel(t.Context(), inPod, []string{"program"}); !errors.Is(err, providers.ErrUnavailable) {
			t.Errorf("a tunnel of what is closed: %v", err)
		}
	})
}

// A read and a write that wait end with their deadlines.
func TestTunnelDeadlines(t *testing.T) {
	tunnelTo(t, func(stdin io.Reader, stdout, _ io.Writer, _ <-chan struct{}) int {
		_, _ = io.WriteString(stdout, "ready\n")
		first := make([]byte, 1)
		for first[0] != 'x' {
			if _, err := stdin.Read(first); err != nil {
				return 0
			}
		}
		_, _ = io.WriteString(stdout, "y")
		_, _ = io.Copy(io.Discard, stdin)
		return 0
	}, func(t *testing.T, _ *execServer, _ *Executor, conn net.Conn) {
		if _, err := io.ReadFull(conn, make([]byte, 6)); err != nil {
			t.Fatal(err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Error(err)
		}
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read: %v", err)
		}
		if err := conn.SetDeadline(time.Now().Add(waitTimeout)); err != nil {
			t.Error(err)
		}
		if _, err := conn.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 1)
		if _, err := io.ReadFull(conn, got); err != nil || got[0] != 'y' {
			t.Errorf("after a deadline: %q, %v", got, err)
		}
	})
	t.Run("write", func(t *testing.T) {
		tunnelTo(t, func(_ io.Reader, stdout, _ io.Writer, gone <-chan struct{}) int {
			_, _ = io.WriteString(stdout, "ready\n")
			<-gone // and reads nothing
			return 0
		}, func(t *testing.T, _ *execServer, _ *Executor, conn net.Conn) {
			if err := conn.SetWriteDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
				t.Error(err)
			}
			if _, err := conn.Write(make([]byte, 64<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("write: %v", err)
			}
		})
	})
}

// A command that does not speak is given up when the caller has had enough.
func TestTunnelEndsWithTheCallersContext(t *testing.T) {
	why := errors.New("the caller has had enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	_, e := newExecServer(t, func(stdin io.Reader, _, _ io.Writer, _ <-chan struct{}) int {
		cancel(why)
		_, _ = io.Copy(io.Discard, stdin)
		return 0
	})
	if _, err := e.Tunnel(ctx, inPod, []string{"program"}); !errors.Is(err, why) {
		t.Errorf("%v", err)
	}
}
