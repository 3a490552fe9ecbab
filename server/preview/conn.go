package preview

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// lingerTime is how long a closed connection waits for the program's end, so that a
// request that went well does not end as a cancelled call.
const lingerTime = time.Second

// chunkBytes bounds one message.
const chunkBytes = 256 << 10

// conn is a connection to a port of a sandbox, over Forward. It is used for one
// request and has no deadlines.
type conn struct {
	stream sandboxv1.SandboxService_ForwardClient
	cancel context.CancelCauseFunc
	// detach ends the connection's dependence on the context of its request.
	detach func() bool
	closed atomic.Bool

	reading sync.Mutex
	rest    []byte
	eof     bool

	writing sync.Mutex
	ended   bool
}

var _ net.Conn = (*conn)(nil)

var errBroken = errors.New("the server broke the protocol of Forward")

// connect returns when the port has accepted the connection. The connection ends with
// ctx, unless it is closed before.
func connect(ctx context.Context, sandboxes sandboxv1.SandboxServiceClient, start *sandboxv1.ForwardStart) (*conn, error) {
	inner, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	c := &conn{cancel: cancel, detach: context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })}
	var err error
	if c.stream, err = sandboxes.Forward(inner); err != nil {
		cancel(err)
		return nil, err
	}
	// If sending fails, receiving returns the reason.
	_ = c.stream.Send(&sandboxv1.ForwardRequest{Payload: &sandboxv1.ForwardRequest_Start{Start: start}})
	first, err := c.stream.Recv()
	if err == nil && first.GetOpened() == nil || errors.Is(err, io.EOF) {
		err = errBroken
	}
	if err != nil {
		cancel(err)
		return nil, err
	}
	return c, nil
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	for {
		switch {
		case c.closed.Load():
			return 0, net.ErrClosed
		case len(c.rest) > 0:
			n := copy(p, c.rest)
			c.rest = c.rest[n:]
			return n, nil
		case c.eof:
			return 0, io.EOF
		}
		m, err := c.stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return 0, errBroken
		case err != nil:
			return 0, err
		}
		switch payload := m.GetPayload().(type) {
		case *sandboxv1.ForwardResponse_Data:
			c.rest = payload.Data
		case *sandboxv1.ForwardResponse_Eof:
			c.eof = true
		default:
			return 0, errBroken
		}
	}
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	written := 0
	for written < len(p) {
		if c.ended {
			return written, net.ErrClosed
		}
		chunk := p[written:min(written+chunkBytes, len(p))]
		if err := c.stream.Send(&sandboxv1.ForwardRequest{Payload: &sandboxv1.ForwardRequest_Data{Data: chunk}}); err != nil {
			return written, err
		}
		written += len(chunk)
	}
	return written, nil
}

// CloseWrite ends the caller's direction. The other one goes on.
func (c *conn) CloseWrite() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.ended {
		return nil
	}
	c.ended = true
	err := c.stream.Send(&sandboxv1.ForwardRequest{Payload: &sandboxv1.ForwardRequest_Eof{Eof: &sandboxv1.ForwardEof{}}})
	return errors.Join(err, c.stream.CloseSend())
}

// Close implements net.Conn. It does not wait for the program.
func (c *conn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	c.detach()
	late := time.AfterFunc(lingerTime, func() { c.cancel(net.ErrClosed) })
	go func() {
		defer late.Stop()
		defer c.cancel(net.ErrClosed)
		// A Write that is blocked ends with the timer.
		_ = c.CloseWrite()
		c.reading.Lock()
		defer c.reading.Unlock()
		for {
			if _, err := c.stream.Recv(); err != nil {
				return
			}
		}
	}()
	return nil
}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return addr{} }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return addr{} }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(time.Time) error { return os.ErrNoDeadline }

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(time.Time) error { return os.ErrNoDeadline }

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }

// addr is the address of both ends, which are in no network.
type addr struct{}

func (addr) Network() string { return "sandbox" }
func (addr) String() string  { return "sandbox" }
