package kube

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/streaming/sealed"
)

// byEach runs a test by each protocol.
func byEach(t *testing.T, run func(t *testing.T, s *forwardServer, e *Executor)) {
	t.Helper()
	for _, protocol := range []string{"WebSocket", "SPDY"} {
		t.Run(protocol, func(t *testing.T) {
			s, e := newForwardServer(t, protocol)
			run(t, s, e)
		})
	}
}

// peerAt plays what listens in a pod: it gives one connection to do.
func peerAt(t *testing.T, do func(net.Conn)) int32 {
	t.Helper()
	l, port := listen(t, "127.0.0.1:0")
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		do(c)
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return port
}

func forward(t *testing.T, e *Executor, port int32) net.Conn {
	t.Helper()
	c, err := e.Forward(t.Context(), podAt(), port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestForwardSealed: what goes to an agent and back by a forwarded port is what
// arrives, in pieces of whatever size.
func TestForwardSealed(t *testing.T) {
	byEach(t, func(t *testing.T, _ *forwardServer, e *Executor) {
		const size = 3 << 20
		secret := sealed.NewSecret()
		inner, port := listen(t, "127.0.0.1:0")
		l, err := sealed.NewListener(inner, secret)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		go func() {
			if c, err := l.Accept(); err == nil {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}
		}()
		conns := PodConns{Through: e}
		defer conns.Close()
		conn, err := conns.Dial(t.Context(), podAt(), port, secret)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		sent, got := sha256.New(), sha256.New()
		written := make(chan error, 1)
		go func() {
			random := rand.NewChaCha8([32]byte{7})
			for left := size; left > 0; {
				part := make([]byte, min(left, 1+rand.IntN(200<<10)))
				_, _ = random.Read(part)
				sent.Write(part)
				if _, err := conn.Write(part); err != nil {
					written <- err
					return
				}
				left -= len(part)
			}
			written <- nil
		}()
		if n, err := io.CopyN(got, conn, size); err != nil {
			t.Fatalf("after %d bytes: %v", n, err)
		}
		if err := <-written; err != nil || !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
			t.Errorf("what came back is something else, %v", err)
		}
	})
}

// TestForwardEnds: the end of a connection is seen on either side, whoever ends
// it.
func TestForwardEnds(t *testing.T) {
	byEach(t, func(t *testing.T, s *forwardServer, e *Executor) {
		t.Run("by the agent", func(t *testing.T) {
			c := forward(t, e, peerAt(t, func(c net.Conn) { _, _ = io.WriteString(c, "hello") }))
			if got, err := io.ReadAll(c); err != nil || string(got) != "hello" {
				t.Errorf("%q, %v", got, err)
			}
			if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
				t.Errorf("after the end: %d, %v", n, err)
			}
		})
		t.Run("by the server", func(t *testing.T) {
			gone := make(chan error, 1)
			c := forward(t, e, peerAt(t, func(c net.Conn) {
				_, _ = io.WriteString(c, "x")
				_, err := io.Copy(io.Discard, c)
				gone <- err
			}))
			if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := c.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			}
			_ = await(t, gone, "the agent sees no end")
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
				t.Errorf("read: %v", err)
			}
			if _, err := c.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
				t.Errorf("write: %v", err)
			}
			if err := c.SetDeadline(time.Now()); !errors.Is(err, net.ErrClosed) {
				t.Errorf("set a deadline: %v", err)
			}
		})
		t.Run("half", func(t *testing.T) {
			c := forward(t, e, peerAt(t, func(c net.Conn) {
				all, _ := io.ReadAll(c)
				_, _ = c.Write(append(all, " back"...))
			}))
			_, err := io.WriteString(c, "there and")
			half := c.(interface{ CloseWrite() error })
			if err = errors.Join(err, half.CloseWrite(), half.CloseWrite()); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Write([]byte("x")); err == nil {
				t.Error("a word after the end was taken")
			}
			// The node is free to end both directions.
			if got, err := io.ReadAll(c); err != nil || len(got) > 0 && string(got) != "there and back" {
				t.Errorf("%q, %v", got, err)
			}
		})
		t.Run("on the way", func(t *testing.T) {
			c := forward(t, e, peerAt(t, func(c net.Conn) {
				_, _ = io.WriteString(c, "x")
				_, _ = io.Copy(io.Discard, c)
			}))
			if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			s.cut()
			if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
				t.Errorf("a broken connection says %v", err)
			}
		})
	})
}

// TestForwardIgnored: a peer that reads nothing holds up neither Close nor a
// deadline.
func TestForwardIgnored(t *testing.T) {
	byEach(t, func(t *testing.T, _ *forwardServer, e *Executor) {
		for name, end := range map[string]func(c net.Conn) error{
			"close":    func(c net.Conn) error { return c.Close() },
			"deadline": func(c net.Conn) error { return c.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)) },
			"hang up": func(c net.Conn) error {
				c.(*forwarded).hangUp()
				return nil
			},
		} {
			t.Run(name, func(t *testing.T) {
				enough := make(chan struct{})
				defer close(enough)
				c := forward(t, e, peerAt(t, func(net.Conn) { <-enough }))
				filled, failed := make(chan struct{}), make(chan error, 1)
				go func() {
					part := make([]byte, 1<<20)
					for n := 0; ; n++ {
						if _, err := c.Write(part); err != nil {
							failed <- err
							return
						}
						if n == 0 {
							close(filled)
						}
					}
				}()
				<-filled
				began := time.Now()
				if err := end(c); err != nil {
					t.Error(err)
				}
				err := await(t, failed, "a write goes on waiting")
				if took := time.Since(began); took > patience/4 {
					t.Errorf("it took %v", took)
				}
				if late := errors.Is(err, os.ErrDeadlineExceeded); late != (name == "deadline") {
					t.Errorf("%v", err)
				}
			})
		}
	})
}

func TestForwardDeadline(t *testing.T) {
	byEach(t, func(t *testing.T, _ *forwardServer, e *Executor) {
		quiet := func() net.Conn {
			return forward(t, e, peerAt(t, func(c net.Conn) { _, _ = io.Copy(c, c) }))
		}
		for _, left := range []time.Duration{-time.Second, 30 * time.Millisecond} {
			c := quiet()
			if err := c.SetReadDeadline(time.Now().Add(left)); err != nil {
				t.Fatal(err)
			}
			var late net.Error
			if _, err := c.Read(make([]byte, 1)); !errors.As(err, &late) || !late.Timeout() {
				t.Errorf("%v: %v", left, err)
			}
		}
		c := quiet()
		if err := errors.Join(c.SetDeadline(time.Now().Add(time.Hour)), c.SetDeadline(time.Now().Add(50*time.Millisecond)), c.SetDeadline(time.Time{})); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		if _, err := io.WriteString(c, "x"); err != nil {
			t.Errorf("after a deadline that was lifted: %v", err)
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Errorf("after a deadline that was lifted: %v", err)
		}
	})
}

// TestForwardFailures: whoever cannot be reached is named, with what to do.
func TestForwardFailures(t *testing.T) {
	byEach(t, func(t *testing.T, _ *forwardServer, e *Executor) {
		secret := sealed.NewSecret()
		conns := PodConns{Through: e}
		defer conns.Close()
		l, free := listen(t, "127.0.0.1:0")
		_ = l.Close()
		other := podAt()
		other.Name = "other"
		for _, c := range []struct {
			name   string
			pod    *corev1.Pod
			port   int32
			secret sealed.Secret
			says   string
		}{
			{"nobody listens", podAt(), free, secret, "gVisor"},
			{"another agent", podAt(), agentAt(t, "127.0.0.1:0", secret), sealed.NewSecret(), "is not its agent"},
			{"no such pod", other, free, secret, "not found"},
		} {
			t.Run(c.name, func(t *testing.T) {
				_, err := conns.Dial(t.Context(), c.pod, c.port, c.secret)
				if !errors.Is(err, providers.ErrUnavailable) && !errors.Is(err, providers.ErrNotFound) || !strings.Contains(err.Error(), c.says) || OutOfReach(err) {
					t.Errorf("%v", err)
				}
			})
		}
		t.Run("a caller who leaves", func(t *testing.T) {
			why := errors.New("enough")
			ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, why)
			defer cancel()
			if _, err := conns.Dial(ctx, podAt(), peerAt(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }), secret); !errors.Is(err, why) {
				t.Errorf("%v", err)
			}
		})
		t.Run("one that never listens", func(t *testing.T) {
			began := time.Now()
			_, err := conns.DialNew(t.Context(), podAt(), free, secret)
			if took := time.Since(began); !OutOfReach(err) || took > 6*podListenWait {
				t.Errorf("after %v: %v", took, err)
			}
		})
	})
}

// TestForwardDrop: connections to a pod that is gone end for who uses them.
func TestForwardDrop(t *testing.T) {
	byEach(t, func(t *testing.T, _ *forwardServer, e *Executor) {
		secret := sealed.NewSecret()
		inner, port := listen(t, "127.0.0.1:0")
		l, err := sealed.NewListener(inner, secret)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				defer func() { _ = c.Close() }() // it stays silent until the end
			}
		}()
		conns := PodConns{Through: e}
		pod := podAt()
		pod.UID = "a"
		conn, err := conns.Dial(t.Context(), pod, port, secret)
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(20*time.Millisecond, func() { conns.Drop("a") })
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("it ends with %v", err)
		}
		if err := conn.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		conns.Close()
		if _, err := conns.Dial(t.Context(), pod, port, secret); !errors.Is(err, providers.ErrUnavailable) {
			t.Errorf("after Close: %v", err)
		}
	})
}

func await[T any](t *testing.T, from <-chan T, or string) T {
	t.Helper()
	select {
	case got := <-from:
		return got
	case <-time.After(patience):
		t.Fatal(or)
		panic("not reached")
	}
}
