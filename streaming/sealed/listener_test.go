package sealed

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	mathrand "math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// TestSilentConnectionsKeepNoPeerOut: the number of silent connections is bounded, and they do not
// keep out peers with the secret.
func TestSilentConnectionsKeepNoPeerOut(t *testing.T) {
	s := NewSecret()
	address, _ := serve(t, s)
	var silent []net.Conn
	for range maxPending + 3 {
		silent = append(silent, dial(t, address))
	}
	// The first ones made room for the last.
	for _, c := range silent[:3] {
		refused(t, c)
	}
	c, err := Client(limit(t), dial(t, address), s)
	if err != nil {
		t.Fatal(err)
	}
	echo(t, c, "still")
	_ = c.Close()
	// The others are given up in time.
	for _, c := range silent[3:] {
		refused(t, c)
	}
}

func TestCloseEndsWhatIsUnderWay(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := NewSecret()
	l, err := NewListener(inner, s)
	if err != nil {
		t.Fatal(err)
	}
	silent := dial(t, l.Addr().String())
	// Accept has not returned this one yet.
	known, err := Client(limit(t), dial(t, l.Addr().String()), s)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > handshakeTimeout/2 {
		t.Errorf("close took %v", took)
	}
	refused(t, silent)
	refused(t, known)
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after close: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("close again: %v", err)
	}
}

// limited is a listener whose first Accepts fail because of a limit.
type limited struct {
	net.Listener
	full int
}

type noRoom struct{ error }

func (noRoom) Temporary() bool { return true }

func (l *limited) Accept() (net.Conn, error) {
	if l.full > 0 {
		l.full--
		return nil, noRoom{errors.New("too many open files")}
	}
	return l.Listener.Accept()
}

func TestAcceptGoesOnWhenThereIsRoomAgain(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := NewSecret()
	l, err := NewListener(&limited{inner, 2}, s)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	c, err := Client(limit(t), dial(t, inner.Addr().String()), s)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	_ = inner.Close()
	if c, err := l.Accept(); err == nil {
		_ = c.Close()
		_, err = l.Accept()
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("the listener below is gone: %v", err)
		}
	}
}

// TestBrokenHandshakesAreRefused: whatever is sent, it is refused, and nothing panics.
func TestBrokenHandshakesAreRefused(t *testing.T) {
	s := NewSecret()
	config, err := s.config(dialer, listener)
	if err != nil {
		t.Fatal(err)
	}
	recorded := &recorder{}
	_ = tls.Client(recorded, config).Handshake()
	hello := recorded.Bytes()
	choice := mathrand.New(mathrand.NewPCG(1, 2))
	for range 300 {
		sent := slices.Clone(hello)
		for range choice.IntN(4) {
			sent[choice.IntN(len(sent))] = byte(choice.IntN(256))
		}
		sent = sent[:choice.IntN(len(sent)+1)]
		offer(t, s, append(sent, make([]byte, choice.IntN(40))...))
	}
}

// offer sends bytes to a listener, which must reject the connection.
func offer(t *testing.T, s Secret, data []byte) {
	t.Helper()
	inner := &given{conn: make(chan net.Conn, 1), closed: make(chan struct{})}
	l, err := NewListener(inner, s)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := net.Pipe()
	inner.conn <- theirs
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(io.Discard, ours) })
	wg.Go(func() {
		if c, err := l.Accept(); err == nil {
			t.Errorf("accepted after %x", data)
			_ = c.Close()
		}
	})
	_ = ours.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = ours.Write(data)
	_ = ours.Close()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

// recorder keeps what is written and answers nothing.
type recorder struct {
	net.Conn
	bytes.Buffer
}

func (r *recorder) Read([]byte) (int, error)    { return 0, io.EOF }
func (r *recorder) Write(p []byte) (int, error) { return r.Buffer.Write(p) }
func (r *recorder) Close() error                { return nil }

// given is a listener with the connections that it is given.
type given struct {
	conn   chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (g *given) Accept() (net.Conn, error) {
	select {
	case c := <-g.conn:
		return c, nil
	case <-g.closed:
		return nil, net.ErrClosed
	}
}

func (g *given) Close() error {
	g.once.Do(func() { close(g.closed) })
	return nil
}

func (g *given) Addr() net.Addr { return &net.TCPAddr{} }
