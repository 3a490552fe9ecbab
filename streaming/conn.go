package streaming

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// Messages is one end of a stream of messages that carries a connection. Send and
// SendEOF are called by one goroutine at a time, Receive by another.
type Messages interface {
	// Send sends data, at most MaxConnChunk bytes, and does not retain it.
	Send(data []byte) error
	// SendEOF ends this end's direction.
	SendEOF() error
	// Receive returns the next data in parts that are not empty and stay valid until
	// the next call. It returns io.EOF when the other end has ended its direction, and
	// any other error after a reset.
	Receive() ([][]byte, error)
	// Reset ends the stream. It may be called at any time, and makes the other
	// methods return.
	Reset()
}

// MaxConnChunk is the largest message of a Conn, in bytes: the largest that fits
// gRPC's buffers of 32 KiB with its header.
const MaxConnChunk = 32_000

// Conn is a connection that a stream of messages carries. It is a net.Conn
// without deadlines: to give up, close it.
type Conn struct {
	messages Messages
	done     chan struct{}

	reading sync.Mutex
	rest    net.Buffers // of the last message
	readErr error

	sending sync.Mutex
	sentEOF bool

	mu       sync.Mutex
	received bool // the other end's EOF
	ended    bool // this end's direction
	closed   bool
}

var (
	_ net.Conn    = (*Conn)(nil)
	_ io.WriterTo = (*Conn)(nil)
)

// NewConn returns the connection that m carries.
func NewConn(m Messages) *Conn { return &Conn{messages: m, done: make(chan struct{})} }

// Read implements net.Conn. It returns io.EOF at the end of the other end's
// direction, and another error after a reset.
func (c *Conn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if err := c.next(); err != nil {
		return 0, err
	}
	n, _ := c.rest.Read(p) // It has an error when nothing is left.
	return n, nil
}

// WriteTo implements io.WriterTo. It writes each message without a copy, and with one
// system call if w is a connection of package net.
func (c *Conn) WriteTo(w io.Writer) (int64, error) {
	for written := int64(0); ; {
		n, ended, err := c.writeNext(w)
		written += n
		if ended || err != nil {
			return written, err
		}
	}
}

// writeNext writes what is left of one message.
func (c *Conn) writeNext(w io.Writer) (n int64, ended bool, err error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	switch err := c.next(); {
	case errors.Is(err, io.EOF):
		return 0, true, nil
	case err != nil:
		return 0, false, err
	}
	n, err = c.rest.WriteTo(w)
	return n, false, err
}

// next waits until there is something to read. The caller holds reading.
func (c *Conn) next() error {
	for len(c.rest) == 0 {
		if c.readErr != nil {
			return c.readErr
		}
		if c.rest, c.readErr = c.messages.Receive(); errors.Is(c.readErr, io.EOF) {
			c.mark(&c.received)
		}
	}
	return nil
}

// Write implements net.Conn. It waits while the other end does not read.
func (c *Conn) Write(p []byte) (int, error) {
	c.sending.Lock()
	defer c.sending.Unlock()
	sent := 0
	for sent < len(p) {
		if c.sentEOF {
			return sent, net.ErrClosed
		}
		chunk := p[sent:min(len(p), sent+MaxConnChunk)]
		if err := c.messages.Send(chunk); err != nil {
			return sent, err
		}
		sent += len(chunk)
	}
	return sent, nil
}

// CloseWrite ends this end's direction. The other end reads io.EOF.
func (c *Conn) CloseWrite() error {
	c.sending.Lock()
	defer c.sending.Unlock()
	if c.sentEOF {
		return nil
	}
	c.sentEOF = true
	err := c.messages.SendEOF()
	if err == nil {
		c.mark(&c.ended)
	}
	return err
}

// mark sets a flag of the end of a direction.
func (c *Conn) mark(flag *bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*flag = true
}

// Close ends the connection, and resets it unless both directions have ended.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	if !c.received || !c.ended {
		c.messages.Reset()
	}
	close(c.done)
	return nil
}

// Done is closed by Close.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Complete reports whether both directions have ended without a reset.
func (c *Conn) Complete() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.received && c.ended
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return connAddr{} }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return connAddr{} }

// SetDeadline implements net.Conn, and always fails.
func (c *Conn) SetDeadline(time.Time) error { return errors.ErrUnsupported }

// SetReadDeadline implements net.Conn, and always fails.
func (c *Conn) SetReadDeadline(time.Time) error { return errors.ErrUnsupported }

// SetWriteDeadline implements net.Conn, and always fails.
func (c *Conn) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }

type connAddr struct{}

func (connAddr) Network() string { return "stream" }
func (connAddr) String() string  { return "stream" }
