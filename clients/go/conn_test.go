//go:build linux

package sandgate_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/test/testserver"
)

// sandbox returns a sandbox of a real server, whose agent shares the machine's network.
func sandbox(t testing.TB) *sandgate.Sandbox {
	t.Helper()
	machine, dir := testserver.Machine(t)
	address, _ := testserver.Serve(t, dir, server.Config{Provider: machine.Open(), Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	client, err := sandgate.NewClient(t.Context(), sandgate.WithAddress(address))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	s, _, err := client.Create(t.Context(), sandgate.CreateRequest{ID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// listenOn listens on a free port of an address.
func listenOn(t testing.TB, host string) (*net.TCPListener, int) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.(*net.TCPListener), l.Addr().(*net.TCPAddr).Port
}

// pair returns both ends of a connection: the client's, and the program's.
func pair(t testing.TB, s *sandgate.Sandbox) (*sandgate.Conn, *net.TCPConn) {
	t.Helper()
	l, port := listenOn(t, "127.0.0.1")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c, err := s.Connect(ctx, port)
	if err != nil {
		t.Fatal(err)
	}
	program, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Reset()
		_ = program.Close()
	})
	return c, program
}

func TestConnIsANetConn(t *testing.T) {
	s := sandbox(t)
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		client, program := pair(t, s)
		return client, program, func() {
			client.Close()
			program.Close()
		}, nil
	})
}

// end is one end of a connection.
type end interface {
	io.ReadWriter
	CloseWrite() error
}

func TestConnHalfClose(t *testing.T) {
	s := sandbox(t)
	content := make([]byte, 3<<20)
	_, _ = rand.Read(content)
	for name, first := range map[string]int{"the client ends first": 0, "the program ends first": 1} {
		t.Run(name, func(t *testing.T) {
			c, p := pair(t, s)
			both := [2]end{c, p}
			for _, half := range [2][2]end{{both[first], both[1-first]}, {both[1-first], both[first]}} {
				sent := make(chan error, 1)
				go func() {
					_, err := half[0].Write(content)
					sent <- errors.Join(err, half[0].CloseWrite())
				}()
				got, err := io.ReadAll(half[1])
				if err != nil || !bytes.Equal(got, content) {
					t.Fatalf("%d bytes, %v", len(got), err)
				}
				if err := <-sent; err != nil {
					t.Fatal(err)
				}
			}
			if _, err := c.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
				t.Errorf("a write after the end: %v", err)
			}
		})
	}
}

func TestConnErrors(t *testing.T) {
	s := sandbox(t)
	l, port := listenOn(t, "127.0.0.1")
	l.Close()
	_, err := s.Connect(t.Context(), port)
	if !errors.Is(err, sandgate.ErrPortClosed) || !errors.Is(err, sandgate.Reason("PORT_CLOSED")) {
		t.Errorf("a closed port: %v", err)
	}
	for _, port := range []int{-1, 0, 65_536, 1 << 40} {
		if _, err := s.Connect(t.Context(), port); !errors.Is(err, sandgate.ErrInvalidRequest) {
			t.Errorf("port %d: %v", port, err)
		}
	}
	if _, err := s.Connect(t.Context(), port, sandgate.ConnectHost("10.0.0.1")); !errors.Is(err, sandgate.ErrInvalidRequest) {
		t.Errorf("an address outside: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(nil)
	if _, err := s.Connect(ctx, port); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled call: %v", err)
	}

	c, p := pair(t, s)
	_ = p.SetLinger(0)
	p.Close()
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, sandgate.Reason("CONNECTION_RESET")) || !errors.Is(err, sandgate.ErrConnectionLost) {
		t.Errorf("a reset: %v", err)
	}
	if _, err := c.Write(make([]byte, 1<<20)); !errors.Is(err, sandgate.ErrConnectionLost) {
		t.Errorf("a write after a reset: %v", err)
	}
}

// The program reads what was written before Close, and a reset only after Reset.
func TestConnCloseAndReset(t *testing.T) {
	s := sandbox(t)
	c, p := pair(t, s)
	content := make([]byte, 1<<20)
	if _, err := c.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(p); err != nil || len(got) != len(content) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if err := c.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a second Close: %v", err)
	}
	c, p = pair(t, s)
	c.Reset()
	if n, err := p.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("after a reset: %d bytes, %v", n, err)
	}
}

// A reset never looks like the end of the input, however close to a write it comes.
func TestConnResetIsNoEnd(t *testing.T) {
	s := sandbox(t)
	for range 50 {
		c, program := pair(t, s)
		if _, err := c.Write([]byte("part")); err != nil {
			t.Fatal(err)
		}
		c.Reset()
		if got, err := io.ReadAll(program); !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("the program read %q, %v", got, err)
		}
	}
}

func TestConnAddresses(t *testing.T) {
	s := sandbox(t)
	l, port := listenOn(t, "::1")
	c, err := s.Connect(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Reset()
	addr, ok := c.RemoteAddr().(sandgate.Addr)
	if !ok || addr.SandboxID != "a" || addr.Incarnation == "" || addr.TCPAddr.String() != l.Addr().String() || addr.Network() != "tcp" {
		t.Errorf("%#v", c.RemoteAddr())
	}
	if got := addr.String(); got != "a/"+l.Addr().String() {
		t.Error(got)
	}
}
