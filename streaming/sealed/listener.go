package sealed

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	// handshakeTimeout bounds the handshake of a new connection.
	handshakeTimeout = 5 * time.Second
	// maxPending bounds the connections in a handshake. Beyond it the oldest is
	// closed: a peer that knows the secret completes the handshake in milliseconds.
	maxPending = 16
	// The backoff after Accept has failed because of a limit.
	minBackoff = 5 * time.Millisecond
	maxBackoff = time.Second
)

// Listener is a listener that returns only connections of peers that know the secret.
type Listener struct {
	inner  net.Listener
	config *tls.Config
	ready  chan net.Conn
	life   context.Context //nolint:containedctx // the listener's own lifetime, which Close ends
	end    context.CancelCauseFunc
	work   sync.WaitGroup

	mu      sync.Mutex
	pending []net.Conn // in their handshakes, oldest first
}

// NewListener takes over a listener. Close must be called.
func NewListener(inner net.Listener, s Secret) (*Listener, error) {
	config, err := s.config(listener, dialer)
	if err != nil {
		return nil, errors.Join(err, inner.Close())
	}
	life, end := context.WithCancelCause(context.Background())
	l := &Listener{inner: inner, config: config, ready: make(chan net.Conn), life: life, end: end}
	l.work.Go(l.run)
	return l, nil
}

// Accept returns the next connection that has completed its handshake.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.ready:
		return c, nil
	case <-l.life.Done():
		return nil, context.Cause(l.life)
	}
}

// Close ends the listener and all connections that Accept has not returned.
func (l *Listener) Close() error {
	l.end(net.ErrClosed)
	err := l.inner.Close()
	l.work.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err //nolint:wrapcheck // a net.Listener returns errors unwrapped
}

// Addr returns the address of the inner listener.
func (l *Listener) Addr() net.Addr { return l.inner.Addr() }

func (l *Listener) run() {
	backoff := minBackoff
	for {
		c, err := l.inner.Accept()
		if err == nil {
			backoff = minBackoff
			l.addPending(c)
			l.work.Go(func() { l.handshake(c) })
			continue
		}
		// Only this method identifies temporary errors.
		var t interface{ Temporary() bool }
		if !errors.As(err, &t) || !t.Temporary() {
			l.end(fmt.Errorf("accept: %w", err))
			return
		}
		select {
		case <-l.life.Done():
			return
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// handshake runs the handshake, and passes the connection to Accept if it succeeds.
func (l *Listener) handshake(raw net.Conn) {
	ctx, cancel := context.WithTimeout(l.life, handshakeTimeout)
	defer cancel()
	c := tls.Server(raw, l.config)
	err := c.HandshakeContext(ctx)
	l.removePending(raw)
	if err == nil {
		select {
		case l.ready <- c:
			return
		case <-l.life.Done():
		}
	}
	_ = raw.Close()
}

func (l *Listener) addPending(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) == maxPending {
		// Then its handshake fails and frees it.
		_ = l.pending[0].Close()
		l.pending = slices.Delete(l.pending, 0, 1)
	}
	l.pending = append(l.pending, c)
}

func (l *Listener) removePending(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = slices.DeleteFunc(l.pending, func(o net.Conn) bool { return o == c })
}
