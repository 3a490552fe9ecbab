package sshserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandgate/sandgate/server/limit"
)

func TestLogin(t *testing.T) {
	b := open(t, tokens{}, nil)
	other := newSigner(t)
	blue := filepath.Join(t.TempDir(), "blue")
	if err := os.WriteFile(blue, []byte("blue\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		keys   string // file; empty: none of these
		user   string
		auth   ssh.AuthMethod
		banner string // contained; empty: no reason is given
		ok     bool
	}{
		{name: "key", keys: line(b.key), user: "box", auth: ssh.PublicKeys(b.key), ok: true},
		{name: "second key", keys: line(b.key), user: "box", auth: ssh.PublicKeys(other, b.key), ok: true},
		{name: "unknown key", keys: line(b.key), user: "box", auth: ssh.PublicKeys(other)},
		{name: "key for this sandbox", keys: `sandboxes="a,b*" ` + line(b.key), user: "box", auth: ssh.PublicKeys(b.key), ok: true},
		{name: "key for another sandbox", keys: `sandboxes="bo,boxy*" ` + line(b.key), user: "box", auth: ssh.PublicKeys(b.key)},
		{name: "key on two lines", keys: `sandboxes="a" ` + line(b.key) + `sandboxes="box" ` + line(b.key), user: "box", auth: ssh.PublicKeys(b.key), ok: true},
		{name: "key with another tenant's token", keys: fmt.Sprintf("token-file=%q %s", blue, line(b.key)), user: "box", auth: ssh.PublicKeys(b.key), banner: "SANDBOX_NOT_FOUND"},
		{name: "key with a missing token", keys: `token-file="/none" ` + line(b.key), user: "box", auth: ssh.PublicKeys(b.key), banner: "token file"},
		{name: "unknown sandbox", keys: line(b.key), user: "none", auth: ssh.PublicKeys(b.key), banner: "SANDBOX_NOT_FOUND"},
		{name: "malformed sandbox", keys: line(b.key), user: "\x1b[2Jno/such", auth: ssh.PublicKeys(b.key), banner: "sandgate: "},
		{name: "token", user: "box", auth: ssh.Password("red"), ok: true},
		{name: "another tenant's token", user: "box", auth: ssh.Password("blue"), banner: "SANDBOX_NOT_FOUND"},
		{name: "unknown token", user: "box", auth: ssh.Password("green"), banner: "CREDENTIALS_INVALID"},
		{name: "no token", user: "box", auth: ssh.Password("")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b.setKeys(tt.keys)
			b.end()
			b.serve(nil)
			client, banner, err := b.dial(tt.user, tt.auth)
			if err == nil {
				defer client.Close()
			}
			if (err == nil) != tt.ok || !strings.Contains(banner, tt.banner) || tt.banner == "" && banner != "" || strings.Contains(banner, "\x1b") {
				t.Fatalf("%v, banner %q", err, banner)
			}
			if tt.ok {
				s, stdout, _ := b.session(client)
				if err := s.Run("echo hello"); err != nil || stdout.String() != "hello\n" {
					t.Errorf("%v, %q", err, stdout)
				}
			}
		})
	}
}

// A gateway that authenticates nobody accepts every token, so a token opens nothing.
func TestTokenWithoutAuthentication(t *testing.T) {
	b := open(t, nil, nil)
	if _, banner, err := b.dial("box", ssh.Password("anything")); err == nil || !strings.Contains(banner, "does not authenticate") {
		t.Errorf("%v, %q", err, banner)
	}
	_ = b.login()
}

// Nothing but the offered methods is there, and none is no method.
func TestMethods(t *testing.T) {
	b := open(t, nil, nil)
	_, _, err := b.dial("box", ssh.KeyboardInteractive(func(string, string, []string, []bool) ([]string, error) { return nil, nil }))
	if err == nil {
		t.Error("somebody without credentials logged in")
	}
	if _, err := New(Config{}); err == nil {
		t.Error("a server that nobody can use")
	}
}

func TestKeysAreReadAgain(t *testing.T) {
	b := open(t, nil, nil)
	other := newSigner(t)
	b.setKeys(line(b.key) + line(other))
	eventually(t, "the new key is known", func() bool {
		client, _, err := b.dial("box", ssh.PublicKeys(other))
		if err == nil {
			_ = client.Close()
		}
		return err == nil
	})
	// A mistake changes nothing but the log.
	b.setKeys("nonsense\n")
	eventually(t, "the mistake is reported", func() bool {
		client, _, err := b.dial("box", ssh.PublicKeys(other))
		if err != nil {
			t.Fatal(err)
		}
		_ = client.Close()
		return strings.Contains(b.log.String(), "line 1: ")
	})
}

// Someone without a key holds all places of connections that log in: the owner of a key logs in, and
// the oldest of those connections is closed for it.
func TestPendingConnectionsFillAllPlaces(t *testing.T) {
	const places = 8
	for name, bound := range map[string]*limit.Pending{"of a host": limit.NewPending(2*places, places), "of all": limit.NewPending(places, 2*places)} {
		t.Run(name, func(t *testing.T) {
			b := open(t, nil, func(s *Server) { s.pending, s.timing.login = bound, patience })
			var held []net.Conn
			for range places {
				held = append(held, b.silent())
			}
			_ = b.login()
			if _, err := io.Copy(io.Discard, held[0]); err != nil {
				t.Errorf("the oldest: %v", err)
			}
			_ = held[places-1].SetReadDeadline(time.Now().Add(10 * time.Millisecond))
			if _, err := io.Copy(io.Discard, held[places-1]); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the newest was closed: %v", err)
			}
			eventually(t, "the reason is logged", func() bool { return strings.Contains(b.log.String(), errPending.Error()) })
		})
	}
}

// Someone at another address opens connection after connection: they displace one
// another, and nobody else's.
func TestPendingConnectionsFlood(t *testing.T) {
	b := open(t, nil, func(s *Server) { s.pending = limit.NewPending(16, 4) })
	var flood sync.WaitGroup
	defer flood.Wait()
	ctx, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	full := make(chan struct{})
	flood.Go(func() {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
		var held [16]net.Conn
		for n := 0; ctx.Err() == nil; {
			conn, err := dialer.DialContext(ctx, "tcp", b.address)
			if err != nil {
				continue
			}
			if old := held[n%len(held)]; old != nil {
				_ = old.Close()
			}
			held[n%len(held)] = conn
			if n++; n == len(held) {
				close(full)
			}
		}
		for _, conn := range held {
			if conn != nil {
				_ = conn.Close()
			}
		}
	})
	<-full
	for range 3 {
		_ = b.login()
	}
}

// Connections that do not log in are bounded in time.
func TestHandshakeTime(t *testing.T) {
	b := open(t, nil, func(s *Server) { s.timing.login = 200 * time.Millisecond })
	conn, err := net.Dial("tcp", b.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("it was not closed")
	}
}

// silent opens a connection that does not log in.
func (b *bed) silent() net.Conn {
	b.t.Helper()
	conn, err := net.Dial("tcp", b.address)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	// The server has sent its version: it waits for that of the client.
	if _, err := io.ReadFull(conn, make([]byte, 4)); err != nil {
		b.t.Fatal(err)
	}
	return conn
}

// One caller cannot take all connections.
func TestConnectionsOfACaller(t *testing.T) {
	b := open(t, tokens{}, func(s *Server) { s.ofCaller = 1 })
	other := newSigner(t)
	b.setKeys(line(b.key) + line(other))
	b.end()
	b.serve(func(s *Server) { s.ofCaller = 1 })
	for name, auth := range map[string]ssh.AuthMethod{
		"key": ssh.PublicKeys(b.key), "other key": ssh.PublicKeys(other), "token": ssh.Password("red"),
	} {
		client, banner, err := b.dial("box", auth)
		if err != nil {
			t.Fatal(name, err, banner)
		}
		if _, banner, err := b.dial("box", auth); err == nil || !strings.Contains(banner, "too many connections") {
			t.Errorf("%s: a second connection: %v, %q", name, err, banner)
		}
		defer client.Close()
		if name != "token" {
			continue
		}
		_ = client.Close()
		eventually(t, "the next one is served", func() bool {
			client, _, err := b.dial("box", auth)
			if err == nil {
				_ = client.Close()
			}
			return err == nil
		})
	}
}

func TestConnections(t *testing.T) {
	b := open(t, nil, func(s *Server) { s.most = 1 })
	client := b.login()
	if _, banner, err := b.dial("box"); err == nil || !strings.Contains(banner, "too many connections") {
		t.Errorf("a second connection: %v, %q", err, banner)
	}
	_ = client.Close()
	eventually(t, "the next one is served", func() bool {
		client, _, err := b.dial("box")
		if err == nil {
			_ = client.Close()
		}
		return err == nil
	})
}

func TestChannels(t *testing.T) {
	b := open(t, nil, nil)
	client := b.login()
	for range maxChannels {
		if _, err := client.NewSession(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.NewSession(); err == nil || !strings.Contains(err.Error(), "too many channels") {
		t.Errorf("one more channel: %v", err)
	}
	second := b.login()
	if s, _, _ := b.session(second); s.Run("true") != nil {
		t.Error("the bound of one connection reached another")
	}
}

// An unused connection is closed, one with a channel is not.
func TestUnused(t *testing.T) {
	b := open(t, nil, func(s *Server) { s.timing.unused = 200 * time.Millisecond })
	// On a busy machine a connection may be closed before its channel is open.
	var client *ssh.Client
	var s *ssh.Session
	eventually(t, "a connection is used", func() bool {
		client = b.login()
		var err error
		s, err = client.NewSession()
		return err == nil
	})
	in, err := s.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start("read x"); err != nil {
		t.Fatal(err)
	}
	if err := b.login().Wait(); err == nil {
		t.Error("an unused connection ended without a reason")
	}
	if _, err := io.WriteString(in, "x\n"); err != nil {
		t.Fatal(err)
	}
	if err := s.Wait(); err != nil {
		t.Errorf("a used connection: %v", err)
	}
	if err := client.Wait(); err == nil {
		t.Error("it ended without a reason")
	}
}

// A peer that does not answer any more is given up, with its commands.
func TestDeadPeer(t *testing.T) {
	b := open(t, nil, func(s *Server) { s.timing.keepalive, s.timing.answer = 50*time.Millisecond, 3*time.Second })
	proxy := newProxy(t, b.address)
	b.address = proxy.listener.Addr().String()
	s, _, _ := b.session(b.login())
	if err := s.Start("sleep 1000"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command runs", func() bool { return b.running() == 1 })
	proxy.mu.Lock() // holds all data back
	defer proxy.mu.Unlock()
	b.idle()
}

// proxy passes data on while nobody holds mu.
type proxy struct {
	listener net.Listener
	mu       sync.RWMutex
}

func newProxy(t *testing.T, to string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l}
	var work sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	work.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				_ = near.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, near, far)
			mu.Unlock()
			pass := func(to, from net.Conn) {
				buffer := make([]byte, 32<<10)
				for {
					n, err := from.Read(buffer)
					p.mu.RLock()
					if _, failed := to.Write(buffer[:n]); failed != nil || err != nil {
						_ = to.Close()
						_ = from.Close()
						p.mu.RUnlock()
						return
					}
					p.mu.RUnlock()
				}
			}
			work.Go(func() { pass(near, far) })
			work.Go(func() { pass(far, near) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, conn := range conns {
			_ = conn.Close()
		}
		mu.Unlock()
		work.Wait()
	})
	return p
}
