package sealed

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// serve is a listener whose connections echo, and what it has accepted.
func serve(t *testing.T, s Secret) (address string, accepted chan net.Conn) {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := NewListener(inner, s)
	if err != nil {
		t.Fatal(err)
	}
	accepted = make(chan net.Conn, 100)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				if !errors.Is(err, net.ErrClosed) {
					t.Errorf("accept: %v", err)
				}
				return
			}
			accepted <- c
			wg.Go(func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		close(accepted)
		for c := range accepted {
			_ = c.Close()
		}
		wg.Wait()
	})
	return l.Addr().String(), accepted
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func limit(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func echo(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
		t.Fatalf("%q, %v", got, err)
	}
}

func TestBothEndsKnowTheSecret(t *testing.T) {
	s := NewSecret()
	address, _ := serve(t, s)
	c, err := Client(limit(t), dial(t, address), s)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	echo(t, c, "hello")
	state := c.(*tls.Conn).ConnectionState()
	if state.Version != tls.VersionTLS13 || state.NegotiatedProtocol != "h2" || state.DidResume {
		t.Errorf("%+v", state)
	}
	const size = 4 << 20
	sent := make([]byte, size)
	rand.Read(sent)
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = c.Write(sent) })
	got := make([]byte, size)
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("bytes changed on the way: %v", err)
	}
	wg.Wait()
}

// refused fails if anything but an end comes from a peer.
func refused(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if n, err := c.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes came", n)
	} else if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("it was left waiting")
	}
}

// TestUnauthenticatedPeersAreRejected: a peer without the secret is rejected and receives no
// data.
func TestUnauthenticatedPeersAreRejected(t *testing.T) {
	s := NewSecret()
	address, accepted := serve(t, s)
	other := NewSecret()

	t.Run("another secret", func(t *testing.T) {
		if _, err := Client(limit(t), dial(t, address), other); !errors.Is(err, ErrUnauthenticated) {
			t.Errorf("%v", err)
		}
	})
	// The others accept any server, as an attacker does.
	shows := func(t *testing.T, change func(*tls.Config)) {
		t.Helper()
		config, err := s.config(dialer, listener)
		if err != nil {
			t.Fatal(err)
		}
		config.VerifyConnection = nil
		change(config)
		c := tls.Client(dial(t, address), config)
		if err := c.HandshakeContext(limit(t)); err == nil {
			refused(t, c)
		}
	}
	certified := func(key ed25519.PrivateKey) []tls.Certificate {
		c, err := certify(key)
		if err != nil {
			t.Fatal(err)
		}
		return []tls.Certificate{c}
	}
	t.Run("a key of another secret", func(t *testing.T) {
		key, _ := other.key(dialer)
		shows(t, func(c *tls.Config) { c.Certificates = certified(key) })
	})
	t.Run("the listener's own key", func(t *testing.T) {
		key, _ := s.key(listener)
		shows(t, func(c *tls.Config) { c.Certificates = certified(key) })
	})
	t.Run("the right certificate without its key", func(t *testing.T) {
		right, _ := s.key(dialer)
		wrong, _ := other.key(dialer)
		c := certified(right)
		c[0].PrivateKey = wrong
		shows(t, func(config *tls.Config) { config.Certificates = c })
	})
	t.Run("a key of another kind", func(t *testing.T) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(1)}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		shows(t, func(c *tls.Config) {
			c.Certificates = []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
		})
	})
	t.Run("more than one certificate", func(t *testing.T) {
		right, _ := s.key(dialer)
		c := certified(right)
		c[0].Certificate = append(c[0].Certificate, c[0].Certificate[0])
		shows(t, func(config *tls.Config) { config.Certificates = c })
	})
	t.Run("no certificate", func(t *testing.T) {
		shows(t, func(c *tls.Config) { c.Certificates = nil })
	})
	t.Run("another protocol", func(t *testing.T) {
		shows(t, func(c *tls.Config) { c.NextProtos = []string{"http/1.1"} })
		shows(t, func(c *tls.Config) { c.NextProtos = nil })
	})
	t.Run("TLS 1.2", func(t *testing.T) {
		shows(t, func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 })
	})
	t.Run("plain text", func(t *testing.T) {
		c := dial(t, address)
		if _, err := io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		said, err := io.ReadAll(c)
		if errors.Is(err, os.ErrDeadlineExceeded) || strings.Contains(string(said), "h2") {
			t.Errorf("%q, %v", said, err)
		}
	})
	select {
	case <-accepted:
		t.Error("an unauthenticated peer was accepted")
	default:
	}
	c, err := Client(limit(t), dial(t, address), s)
	if err != nil {
		t.Fatalf("after all of them, a peer with the secret: %v", err)
	}
	echo(t, c, "here")
	_ = c.Close()
}

// TestAnotherProcessAtTheAddressIsRejected: the address belongs to another process.
func TestAnotherProcessAtTheAddressIsRejected(t *testing.T) {
	answer := func(ctx context.Context, t *testing.T, with func(net.Conn)) error {
		t.Helper()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if c, err := l.Accept(); err == nil {
				with(c)
				_ = c.Close()
			}
		})
		t.Cleanup(func() {
			_ = l.Close()
			wg.Wait()
		})
		_, err = Client(ctx, dial(t, l.Addr().String()), NewSecret())
		return err
	}
	t.Run("a web server", func(t *testing.T) {
		err := answer(limit(t), t, func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n") })
		if !errors.Is(err, ErrUnauthenticated) {
			t.Errorf("%v", err)
		}
	})
	t.Run("TLS of its own", func(t *testing.T) {
		err := answer(limit(t), t, func(c net.Conn) {
			key, _ := NewSecret().key(listener)
			certificate, _ := certify(key)
			_ = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"}}).Handshake()
		})
		if !errors.Is(err, ErrUnauthenticated) {
			t.Errorf("%v", err)
		}
	})
	t.Run("a server that hangs up", func(t *testing.T) {
		err := answer(limit(t), t, func(c net.Conn) { _, _ = c.Read(make([]byte, 1)) })
		if err == nil || errors.Is(err, ErrUnauthenticated) {
			t.Errorf("%v", err)
		}
	})
	t.Run("a silent server", func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, errImpatient)
		defer cancel()
		if err := answer(ctx, t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }); !errors.Is(err, errImpatient) {
			t.Errorf("%v", err)
		}
	})
}

var errImpatient = errors.New("it took too long")
