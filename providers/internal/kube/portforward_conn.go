package kube

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	framing "github.com/moby/spdystream/spdy"
	corev1 "k8s.io/api/core/v1"
)

const (
	// The streams of a forwarded connection. There are no others.
	errorStream = 1
	dataStream  = 3
	// forwardChunk is the most of a data frame's content: what gRPC writes at once,
	// and what TLS adds.
	forwardChunk = 68 << 10
	frameHeader  = 8
	// refusalLimit is far above what a node says of why it does not forward.
	refusalLimit = 4 << 10
)

// forwarded is a connection to a pod's port. What carries it speaks SPDY to the
// pod's node, one stream for the data and one for what went wrong. That is so
// little of SPDY that it is spoken here, without the goroutines and queues of a
// library that serves many streams.
type forwarded struct {
	wire  io.ReadWriteCloser
	where address

	reading sync.Mutex
	in      *bufio.Reader
	left    int    // of the content of a data frame
	last    bool   // it is the last
	said    []byte // what went wrong

	writing sync.Mutex
	out     []byte // frames to be sent
	tail    int    // where in out a data frame begins that more can be added to, or -1
	held    int    // how many have more to add
	shut    bool   // our data has ended

	mu     sync.Mutex
	ended  error // why it was ended on this side
	timers [2]*time.Timer
}

func newForwarded(wire io.ReadWriteCloser, where address) *forwarded {
	return &forwarded{wire: wire, where: where, in: bufio.NewReader(wire), tail: -1}
}

// begin asks for the two streams. Data may follow at once: the other side looks
// at the frames of a stream in their order.
func (c *forwarded) begin(port int32) error {
	var frames bytes.Buffer
	framer, err := framing.NewFramer(&frames, &frames)
	if err != nil {
		return err
	}
	for _, stream := range []struct {
		id   framing.StreamId
		kind string
	}{{errorStream, corev1.StreamTypeError}, {dataStream, corev1.StreamTypeData}} {
		headers := http.Header{}
		headers.Set(corev1.StreamType, stream.kind)
		headers.Set(corev1.PortHeader, strconv.Itoa(int(port)))
		headers.Set(corev1.PortForwardRequestIDHeader, "0")
		if err := framer.WriteFrame(&framing.SynStreamFrame{StreamId: stream.id, Headers: headers}); err != nil {
			return err
		}
	}
	// Nothing goes wrong on this side that the other wants to hear of.
	if err := framer.WriteFrame(&framing.DataFrame{StreamId: errorStream, Flags: framing.DataFlagFin}); err != nil {
		return err
	}
	_, err = c.wire.Write(frames.Bytes())
	return err
}

// Read implements net.Conn.
func (c *forwarded) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	for c.left == 0 {
		if c.last {
			return 0, c.failed("read", c.farewell())
		}
		if err := c.frame(); err != nil {
			return 0, c.failed("read", err)
		}
	}
	n, err := c.in.Read(p[:min(len(p), c.left)])
	if c.left -= n; n > 0 {
		return n, nil
	}
	return 0, c.failed("read", unexpected(err))
}

// farewell is how the other side ended the data.
func (c *forwarded) farewell() error {
	if len(c.said) == 0 {
		return io.EOF
	}
	return fmt.Errorf("%w: %s", errNotForwarded, Shorten(strings.TrimSpace(string(c.said))))
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// frame reads a frame's header, and all of a frame that is no data.
func (c *forwarded) frame() error {
	var header [frameHeader]byte
	if _, err := io.ReadFull(c.in, header[:]); err != nil {
		return unexpected(err)
	}
	first := binary.BigEndian.Uint32(header[:])
	size := int(binary.BigEndian.Uint32(header[4:]) & 0xffffff)
	const control, fin = 1 << 31, byte(framing.DataFlagFin)
	switch {
	case first == dataStream:
		c.left, c.last = size, header[4]&fin != 0
		return nil
	case first == errorStream:
		part := min(size, refusalLimit-len(c.said))
		start := len(c.said)
		c.said = append(c.said, make([]byte, part)...)
		if _, err := io.ReadFull(c.in, c.said[start:]); err != nil {
			return unexpected(err)
		}
		return c.skip(size - part)
	case first&control == 0:
		return c.skip(size)
	}
	switch kind := framing.ControlFrameType(first & 0xffff); {
	case kind == framing.TypeGoAway:
		return io.ErrUnexpectedEOF
	case kind == framing.TypePing && size == 4, kind == framing.TypeRstStream && size == 8:
		content := make([]byte, size)
		if _, err := io.ReadFull(c.in, content); err != nil {
			return unexpected(err)
		}
		if kind == framing.TypePing {
			return c.pong(append(header[:], content...))
		}
		if binary.BigEndian.Uint32(content) == dataStream {
			if len(c.said) == 0 {
				return io.ErrUnexpectedEOF
			}
			c.last = true
		}
		return nil
	default:
		return c.skip(size)
	}
}

func (c *forwarded) skip(n int) error {
	_, err := c.in.Discard(n)
	return unexpected(err)
}

// Write implements net.Conn.
func (c *forwarded) Write(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	for n := 0; n < len(p); {
		part := p[n:min(len(p), n+forwardChunk)]
		if err := c.data(part, 0); err != nil {
			return n, c.failed("write", err)
		}
		n += len(part)
	}
	return len(p), nil
}

// CloseWrite ends what is written. The node then ends the whole connection, at
// the latest a second later.
func (c *forwarded) CloseWrite() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.shut {
		return nil
	}
	err := c.data(nil, framing.DataFlagFin)
	c.shut = true
	return c.failed("close", err)
}

// pong answers a ping, unless data is on its way out, which says as much: reading
// must not wait for writing.
func (c *forwarded) pong(frame []byte) error {
	if !c.writing.TryLock() {
		return nil
	}
	defer c.writing.Unlock()
	c.out, c.tail = append(c.out, frame...), -1
	return c.flush()
}

// gather has what is written meanwhile sent together, but for what is too much
// for one frame.
func (c *forwarded) gather(write func() (int, error)) (int, error) {
	c.writing.Lock()
	c.held++
	c.writing.Unlock()
	n, err := write()
	c.writing.Lock()
	defer c.writing.Unlock()
	c.held--
	if sent := c.flush(); err == nil && sent != nil {
		return 0, c.failed("write", sent)
	}
	return n, err
}

// data sends a part of the data, together with what else there is to be sent.
func (c *forwarded) data(p []byte, flags framing.DataFlags) error {
	if c.shut {
		return net.ErrClosed
	}
	size := len(p)
	if c.tail < 0 || len(c.out)-c.tail-frameHeader+size > forwardChunk {
		c.tail = len(c.out)
		c.out = binary.BigEndian.AppendUint32(c.out, dataStream)
		c.out = binary.BigEndian.AppendUint32(c.out, 0)
	}
	c.out = append(c.out, p...)
	size = len(c.out) - c.tail - frameHeader
	binary.BigEndian.PutUint32(c.out[c.tail+4:], uint32(flags)<<24|uint32(size))
	return c.flush()
}

func (c *forwarded) flush() error {
	if len(c.out) == 0 || c.held > 0 && len(c.out) <= forwardChunk {
		return nil
	}
	_, err := c.wire.Write(c.out)
	c.out, c.tail = c.out[:0], -1
	return err
}

// failed is what an operation says that did not succeed.
func (c *forwarded) failed(op string, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		return nil
	case c.ended != nil:
		err = c.ended
	}
	if errors.Is(err, io.EOF) && op == "read" {
		return io.EOF
	}
	return &net.OpError{Op: op, Net: c.where.Network(), Addr: c.where, Err: err}
}

// end ends the connection on this side. The first reason counts.
func (c *forwarded) end(why error) {
	if c.ended == nil {
		c.ended = why
	}
	for i, t := range c.timers {
		if t != nil {
			t.Stop()
		}
		c.timers[i] = nil
	}
	_ = c.wire.Close()
}

// Close implements net.Conn.
func (c *forwarded) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(net.ErrClosed)
	return nil
}

// hangUp ends the connection as the other side would have.
func (c *forwarded) hangUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(io.EOF)
}

// SetDeadline implements net.Conn, but for what it does to the connection.
func (c *forwarded) SetDeadline(at time.Time) error {
	return errors.Join(c.SetReadDeadline(at), c.SetWriteDeadline(at))
}

// SetReadDeadline is like SetDeadline.
func (c *forwarded) SetReadDeadline(at time.Time) error { return c.setTimer(0, at) }

// SetWriteDeadline is like SetDeadline.
func (c *forwarded) SetWriteDeadline(at time.Time) error { return c.setTimer(1, at) }

func (c *forwarded) setTimer(which int, at time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(c.ended, net.ErrClosed) {
		return &net.OpError{Op: "set", Net: c.where.Network(), Addr: c.where, Err: c.ended}
	}
	if c.ended != nil {
		return nil
	}
	if t := c.timers[which]; t != nil {
		t.Stop()
	}
	c.timers[which] = nil
	if at.IsZero() {
		return nil
	}
	if left := time.Until(at); left > 0 {
		var t *time.Timer
		t = time.AfterFunc(left, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.timers[which] == t {
				c.end(os.ErrDeadlineExceeded)
			}
		})
		c.timers[which] = t
		return nil
	}
	c.end(os.ErrDeadlineExceeded)
	return nil
}

// LocalAddr implements net.Conn.
func (c *forwarded) LocalAddr() net.Addr { return address("server") }

// RemoteAddr implements net.Conn.
func (c *forwarded) RemoteAddr() net.Addr { return c.where }
