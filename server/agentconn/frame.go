package agentconn

import (
	"errors"
	"fmt"
	"math"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

// Bounds of one message of a stream, in bytes.
const (
	maxFrame = 2 << 20
	maxEvent = 64 << 10 // without output and content
)

// Field numbers of the stream messages, the same in both packages. Other events
// are decoded.
const (
	FieldOutput = 2 // of an event

	FieldHeader  = 1 // of a file
	FieldChunk   = 2
	FieldTrailer = 3

	fieldOutputStream   = 1
	fieldOutputPosition = 2
	fieldOutputData     = 3
)

var errFrame = errors.New("malformed frame")

// cursor reads protobuf's wire format from buffers that need not be contiguous.
type cursor struct {
	bufs mem.BufferSlice
	cur  []byte
	left int
}

func newCursor(data mem.BufferSlice) cursor { return cursor{bufs: data, left: data.Len()} }

func (c *cursor) fill() bool {
	for len(c.cur) == 0 {
		if len(c.bufs) == 0 {
			return false
		}
		c.cur = c.bufs[0].ReadOnlyData()
		c.bufs = c.bufs[1:]
	}
	return true
}

func (c *cursor) varint() (uint64, error) {
	var v uint64
	for shift := uint(0); shift < 64; shift += 7 {
		if !c.fill() {
			return 0, fmt.Errorf("%w: cut short", errFrame)
		}
		b := c.cur[0]
		c.cur = c.cur[1:]
		c.left--
		if shift == 63 && b > 1 {
			break
		}
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v, nil
		}
	}
	return 0, fmt.Errorf("%w: number out of range", errFrame)
}

func (c *cursor) tag() (protowire.Number, protowire.Type, error) {
	v, err := c.varint()
	if err != nil {
		return 0, 0, err
	}
	num, typ := protowire.DecodeTag(v)
	if num < protowire.MinValidNumber {
		return 0, 0, fmt.Errorf("%w: field number", errFrame)
	}
	return num, typ, nil
}

// length reads the length of a field that must lie within the message.
func (c *cursor) length() (int, error) {
	v, err := c.varint()
	if err != nil {
		return 0, err
	}
	if v > uint64(c.left) {
		return 0, fmt.Errorf("%w: a field of %d bytes in %d", errFrame, v, c.left)
	}
	return int(v), nil
}

func (c *cursor) skip(n int) {
	for n > 0 && c.fill() {
		k := min(n, len(c.cur))
		c.cur = c.cur[k:]
		c.left -= k
		n -= k
	}
}

// Content is the undecoded content of a Frame's only field.
type Content struct{ cursor }

// Parse reads the head of a message that must consist of a single
// length-delimited field. It returns the field's number and content.
func (f *Frame) Parse() (protowire.Number, Content, error) {
	num, c, err := oneof(f.Data)
	return num, Content{c}, err
}

func oneof(data mem.BufferSlice) (protowire.Number, cursor, error) {
	c := newCursor(data)
	if c.left > maxFrame {
		return 0, c, fmt.Errorf("%w: %d bytes", errFrame, c.left)
	}
	num, typ, err := c.tag()
	if err != nil {
		return 0, c, err
	}
	if typ != protowire.BytesType {
		return 0, c, fmt.Errorf("%w: field %d of type %d", errFrame, num, typ)
	}
	n, err := c.length()
	if err != nil {
		return 0, c, err
	}
	if n != c.left {
		return 0, c, fmt.Errorf("%w: %d bytes after field %d", errFrame, c.left-n, num)
	}
	return num, c, nil
}

// Output is the head of a sandbox.v1.Output.
type Output struct {
	Stream   sandboxv1.Stream
	Position int64
	Size     int
}

// Output reads the head of an Output. It rejects repeated and unknown fields.
func (content Content) Output() (Output, error) {
	c := content.cursor
	var o Output
	var seen [fieldOutputData + 1]bool
	for c.left > 0 {
		num, typ, err := c.tag()
		if err != nil {
			return o, err
		}
		if num > fieldOutputData || seen[num] {
			return o, fmt.Errorf("%w: field %d of output", errFrame, num)
		}
		seen[num] = true
		switch {
		case num == fieldOutputData && typ == protowire.BytesType:
			if o.Size, err = c.length(); err != nil {
				return o, err
			}
			c.skip(o.Size)
		case num != fieldOutputData && typ == protowire.VarintType:
			v, err := c.varint()
			if err != nil {
				return o, err
			}
			if v > math.MaxInt64 {
				return o, fmt.Errorf("%w: negative field %d of output", errFrame, num)
			}
			if num == fieldOutputPosition {
				o.Position = int64(v)
			} else {
				o.Stream = sandboxv1.Stream(min(v, math.MaxInt32))
			}
		default:
			return o, fmt.Errorf("%w: field %d of output has type %d", errFrame, num, typ)
		}
	}
	if o.Stream != sandboxv1.Stream_STREAM_STDOUT && o.Stream != sandboxv1.Stream_STREAM_STDERR {
		return o, fmt.Errorf("%w: stream %d", errFrame, o.Stream)
	}
	if o.Size == 0 || o.Size > streaming.MaxChunk || o.Position > math.MaxInt64-int64(o.Size) {
		return o, fmt.Errorf("%w: output of %d bytes at %d", errFrame, o.Size, o.Position)
	}
	return o, nil
}

// Chunk checks a chunk of a file and returns its size.
func (content Content) Chunk() (int, error) {
	c := content.cursor
	if c.left == 0 || c.left > streaming.MaxChunk {
		return 0, fmt.Errorf("%w: chunk of %d bytes", errFrame, c.left)
	}
	return c.left, nil
}

// Decode unmarshals a small message. It drops unknown fields, so that nothing
// unchecked is forwarded.
func (f *Frame) Decode(m proto.Message) error {
	if n := f.Data.Len(); n > maxEvent {
		return fmt.Errorf("%w: %T of %d bytes", errFrame, m, n)
	}
	buf := f.Data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(buf.ReadOnlyData(), m); err != nil {
		return fmt.Errorf("%w: %w", errFrame, err)
	}
	return nil
}
