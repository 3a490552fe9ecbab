package sandgate

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Sizes of the data in one message: a write is cut into large chunks, and what is no
// large chunk into small ones. Sizes in between cost gRPC a buffer of 1 MiB.
const (
	smallChunk = 32_000
	largeChunk = 256 << 10
)

// linger is how long a closed connection waits until what was written is sent and the
// program in the sandbox has ended its direction. Then the connection is reset.
const linger = 30 * time.Second

// Conn is a connection to a TCP port of a sandbox. It is a [net.Conn] with half-close.
// Its methods are safe for concurrent use.
type Conn struct {
	stream sandboxv1.SandboxService_ForwardClient
	cancel context.CancelCauseFunc
	remote Addr

	reading  sync.Mutex // held by Read
	unread   []byte     // guarded by reading
	incoming chan []byte
	// ended is closed by the receiver when nothing more comes, for the reason failure:
	// io.EOF after the program's end.
	ended   chan struct{}
	failure error
	// over is closed when the call has ended, for the reason end.
	over chan struct{}
	end  error

	writing  sync.Mutex             // held by Write and CloseWrite
	halved   bool                   // guarded by writing
	outgoing chan *grpc.PreparedMsg // closed by CloseWrite
	sent     chan struct{}          // closed after the last message

	closing   sync.Once
	closed    chan struct{}
	readTime  deadline
	writeTime deadline
}

var _ net.Conn = (*Conn)(nil)

func newConn(stream sandboxv1.SandboxService_ForwardClient, cancel context.CancelCauseFunc, remote Addr) *Conn {
	c := &Conn{
		stream: stream, cancel: cancel, remote: remote,
		incoming: make(chan []byte), ended: make(chan struct{}), over: make(chan struct{}),
		outgoing: make(chan *grpc.PreparedMsg), sent: make(chan struct{}), closed: make(chan struct{}),
		readTime: newDeadline(), writeTime: newDeadline(),
	}
	go c.receive()
	go c.send()
	return c
}

var errEnded = local(ErrConnectionLost, codes.Aborted, nil, "the connection has ended")

var errReset = local(ErrConnectionLost, codes.Canceled, nil, "the connection was reset by this side")

// receive hands data to Read until the call ends.
func (c *Conn) receive() {
	defer close(c.over)
	defer c.cancel(errReset)
	err := c.receiveData()
	if err != nil {
		c.end, c.failure = err, err
		close(c.ended)
		return
	}
	// The program has ended its direction. The call goes on until this side has.
	c.failure = io.EOF
	close(c.ended)
	if _, c.end = c.stream.Recv(); c.end == nil || errors.Is(c.end, io.EOF) {
		c.end = errEnded
	}
}

// receiveData returns nil after the program has ended its direction.
func (c *Conn) receiveData() error {
	for {
		m, err := c.stream.Recv()
		switch p := m.GetPayload().(type) {
		case *sandboxv1.ForwardResponse_Data:
			select {
			case c.incoming <- p.Data:
			case <-c.closed:
				// Nobody reads it. As on TCP the program is told so, once it has everything.
				<-c.sent
				return errReset
			}
		case *sandboxv1.ForwardResponse_Eof:
			return nil
		default:
			if errors.Is(err, io.EOF) {
				return local(ErrUnavailable, codes.Unavailable, err, "the stream ended before the connection did")
			}
			if err != nil {
				return err
			}
		}
	}
}

// send sends what Write has prepared, and then eof.
func (c *Conn) send() {
	defer close(c.sent)
	for m := range c.outgoing {
		if err := c.stream.SendMsg(m); err != nil {
			// The receiver gets the reason.
			return
		}
	}
	// After Reset the call ends a moment later, and an eof could still get through: the
	// program would take a part for the whole.
	if c.stream.Context().Err() != nil {
		return
	}
	_ = c.stream.Send(&sandboxv1.ForwardRequest{Payload: &sandboxv1.ForwardRequest_Eof{Eof: &sandboxv1.ForwardEof{}}})
	_ = c.stream.CloseSend()
}

// Read reads what the program in the sandbox has sent. It returns [io.EOF] after the
// program has ended its direction, and an [*Error] if the connection was reset or lost.
func (c *Conn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if err := c.usable(&c.readTime); err != nil {
		return 0, c.opError("read", err)
	}
	if len(c.unread) == 0 && len(p) > 0 {
		select {
		case c.unread = <-c.incoming:
		case <-c.ended:
			if errors.Is(c.failure, io.EOF) {
				return 0, io.EOF
			}
			return 0, c.opError("read", c.failure)
		case <-c.closed:
			return 0, c.opError("read", net.ErrClosed)
		case <-c.readTime.passed():
			return 0, c.opError("read", os.ErrDeadlineExceeded)
		}
	}
	n := copy(p, c.unread)
	c.unread = c.unread[n:]
	return n, nil
}

// Write sends p. It returns when all of p but the last chunk is on its way: a failure may
// show in the next call.
func (c *Conn) Write(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	n := 0
	for n < len(p) || n == 0 {
		if err := c.usable(&c.writeTime); err != nil {
			return n, c.opError("write", err)
		}
		if c.halved {
			return n, c.opError("write", net.ErrClosed)
		}
		if len(p) == 0 {
			return 0, nil
		}
		size := min(len(p)-n, smallChunk)
		if len(p)-n >= largeChunk {
			size = largeChunk
		}
		m := &grpc.PreparedMsg{}
		if err := m.Encode(c.stream, &sandboxv1.ForwardRequest{Payload: &sandboxv1.ForwardRequest_Data{Data: p[n : n+size]}}); err != nil {
			return n, c.opError("write", err)
		}
		select {
		case c.outgoing <- m:
			n += size
		case <-c.over:
			return n, c.opError("write", c.end)
		case <-c.closed:
			return n, c.opError("write", net.ErrClosed)
		case <-c.writeTime.passed():
			return n, c.opError("write", os.ErrDeadlineExceeded)
		}
	}
	return n, nil
}

// usable returns why an operation fails before it begins.
func (c *Conn) usable(d *deadline) error {
	select {
	case <-c.closed:
		return net.ErrClosed
	default:
	}
	select {
	case <-d.passed():
		return os.ErrDeadlineExceeded
	default:
		return nil
	}
}

// CloseWrite ends this side's direction: the program reads the end of its input, and may
// go on to send.
func (c *Conn) CloseWrite() error {
	select {
	case <-c.closed:
		return c.opError("close", net.ErrClosed)
	default:
	}
	c.halve()
	return nil
}

func (c *Conn) halve() {
	c.writing.Lock()
	defer c.writing.Unlock()
	if !c.halved {
		c.halved = true
		close(c.outgoing)
	}
}

// Close ends both directions. What was written is still sent. A program that sends more,
// or does not end its direction within 30 s, reads a reset.
func (c *Conn) Close() error {
	err := error(net.ErrClosed)
	c.closing.Do(func() {
		err = nil
		close(c.closed) // also ends a Write, which holds writing
		c.halve()
		late := time.AfterFunc(linger, func() { c.cancel(errReset) })
		go func() {
			<-c.over
			late.Stop()
		}()
	})
	if err != nil {
		return c.opError("close", err)
	}
	return nil
}

// Reset ends both directions at once. What is on its way may be lost, and the program
// reads a reset.
func (c *Conn) Reset() {
	c.cancel(errReset)
	_ = c.Close()
}

// LocalAddr returns the address of the sandbox's port: a connection has no other.
func (c *Conn) LocalAddr() net.Addr { return c.remote }

// RemoteAddr returns the address of the sandbox's port, an [Addr].
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline sets when Read fails with [os.ErrDeadlineExceeded]. Zero: never.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.set(&c.readTime, t) }

// SetWriteDeadline sets when Write fails with [os.ErrDeadlineExceeded]. Zero: never.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.set(&c.writeTime, t) }

func (c *Conn) set(d *deadline, t time.Time) error {
	select {
	case <-c.closed:
		return c.opError("set", net.ErrClosed)
	default:
		d.set(t)
		return nil
	}
}

func (c *Conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Addr: c.remote, Err: err}
}

// deadline is a channel that is closed when a time has come.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	done  chan struct{}
}

func newDeadline() deadline { return deadline{done: make(chan struct{})} }

func (d *deadline) passed() chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.done
}

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.done // the timer closes it
	}
	d.timer = nil
	select {
	case <-d.done:
		d.done = make(chan struct{})
	default:
	}
	switch left := time.Until(t); {
	case t.IsZero():
	case left <= 0:
		close(d.done)
	default:
		done := d.done
		d.timer = time.AfterFunc(left, func() { close(done) })
	}
}
