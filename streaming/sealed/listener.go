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
	// handshakeTime is how long a new connection may take to prove itself.
	handshakeTime = 5 * time.Second
	// maxUnproved bounds the connections that have not. Beyond it the oldest is
	// closed: who knows the secret needs milliseconds, so it is not the one that
	// waits.
	maxUnproved = 16
	// The pauses after the system had no room for another connection.
	acceptPause    = 5 * time.Millisecond
	acceptPauseMax = time.Second
)

// Listener is a listener whose connections come from ends that know the secret.
// What others send is never handed on.
type Listener struct {
	inner  net.Listener
	config *tls.Config
	ready  chan net.Conn
	life   context.Context //nolint:containedctx // the listener's own end, which Close sets
	end    context.CancelCauseFunc
	work   sync.WaitGroup

	mu       sync.Mutex
	unproved []net.Conn // the oldest first
}

// NewListener takes over a listener. Close must be called in the end.
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

// Accept returns the next connection that has proved itself.
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
	return err //nolint:wrapcheck // a net.Listener returns its errors bare
}

// Addr is the address of the listener below.
func (l *Listener) Addr() net.Addr { return l.inner.Addr() }

func (l *Listener) run() {
	pause := acceptPause
	for {
		c, err := l.inner.Accept()
		if err == nil {
			pause = acceptPause
			l.enter(c)
			l.work.Go(func() { l.prove(c) })
			continue
		}
		// What is temporary is told by this method only.
		var t interface{ Temporary() bool }
		if !errors.As(err, &t) || !t.Temporary() {
			l.end(fmt.Errorf("accept: %w", err))
			return
		}
		select {
		case <-l.life.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, acceptPauseMax)
	}
}

// prove shakes hands, and hands the connection on if that went well.
func (l *Listener) prove(raw net.Conn) {
	ctx, cancel := context.WithTimeout(l.life, handshakeTime)
	defer cancel()
	c := tls.Server(raw, l.config)
	err := c.HandshakeContext(ctx)
	l.leave(raw)
	if err == nil {
		select {
		case l.ready <- c:
			return
		case <-l.life.Done():
		}
	}
	_ = raw.Close()
}

func (l *Listener) enter(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.unproved) == maxUnproved {
		// Its handshake fails, and the rest is prove's.
		_ = l.unproved[0].Close()
		l.unproved = slices.Delete(l.unproved, 0, 1)
	}
	l.unproved = append(l.unproved, c)
}

func (l *Listener) leave(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unproved = slices.DeleteFunc(l.unproved, func(o net.Conn) bool { return o == c })
}
