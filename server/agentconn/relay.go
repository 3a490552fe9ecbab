package agentconn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"google.golang.org/grpc"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/streaming"
)

// Field numbers of the messages of a bidirectional stream after its first.
const (
	FieldData = 2
	FieldEOF  = 3
)

// OpenBidi opens a bidirectional stream of the agent, to exchange Frames on.
func (c *Conn) OpenBidi(ctx context.Context, method string) (grpc.ClientStream, error) {
	return c.client.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
}

// Relay forwards data between a caller and an agent, undecoded, in both directions at
// once, until each direction has ended with eof. Flow control is that of the streams: a
// receiver that takes nothing stops the sender of its direction, and nothing else.
type Relay struct {
	Caller grpc.ServerStream
	Agent  grpc.ClientStream
	// Cancel ends the agent's stream with a cause.
	Cancel context.CancelCauseFunc
	// OnData is called with the size of each message of data, in either direction.
	OnData func(bytes int)

	callerEnded atomic.Bool // the caller has sent eof
}

// Run returns nil once both directions have ended and the agent's stream with them. Any
// error ends both directions. The goroutine that receives from the caller ends with the
// caller's stream, after Run.
func (r *Relay) Run() error {
	go func() {
		if err := fault.Catch(r.fromCaller); err != nil {
			r.Cancel(err)
		}
	}()
	var d direction
	for {
		var fr Frame
		if err := r.Agent.RecvMsg(&fr); err != nil {
			if !errors.Is(err, io.EOF) {
				return err
			}
			if !d.ended || !r.callerEnded.Load() {
				return fault.Misbehaved("a connection that ended without eof")
			}
			return nil
		}
		n, err := d.check(&fr)
		if err != nil {
			fr.Free()
			return fault.Misbehaved("%w", err)
		}
		r.OnData(n)
		if err := r.Caller.SendMsg(&fr); err != nil {
			return &CallerError{Err: err}
		}
	}
}

// errNoEOF ends a call whose caller has ended its stream without eof. It is no success: a
// proxy may end a cancelled stream like that.
var errNoEOF = fault.New(sandboxv1.ErrorReason_ERROR_REASON_CALL_CANCELLED,
	"the caller's stream ended without eof; the connection was reset")

// fromCaller returns nil when the caller has ended its stream after eof, or when the
// agent has ended its own.
func (r *Relay) fromCaller() error {
	var d direction
	for {
		var fr Frame
		err := r.Caller.RecvMsg(&fr)
		switch {
		case errors.Is(err, io.EOF) && d.ended:
			return nil
		case errors.Is(err, io.EOF):
			return errNoEOF
		case err != nil:
			return &CallerError{Err: err}
		}
		n, err := d.check(&fr)
		if err != nil {
			fr.Free()
			return fault.New(sandboxv1.ErrorReason_ERROR_REASON_REQUEST_INVALID,
				"payload: must be start, then data of 1 byte to 256 KiB, then one eof").WithCause(err)
		}
		r.OnData(n)
		if d.ended {
			// Before the agent can answer it.
			r.callerEnded.Store(true)
		}
		if err := r.Agent.SendMsg(&fr); err != nil {
			// The receiving side returns the reason.
			return nil
		}
		if d.ended {
			if err := r.Agent.CloseSend(); err != nil {
				return nil
			}
		}
	}
}

// direction checks the messages of one direction.
type direction struct{ ended bool }

// check returns the number of bytes of a message: 0 for eof.
func (d *direction) check(fr *Frame) (int, error) {
	content, err := fr.Relayed()
	if err != nil {
		return 0, err
	}
	if d.ended {
		return 0, fmt.Errorf("%w: a message after eof", errFrame)
	}
	d.ended = content.left == 0
	return content.left, nil
}

// Relayed returns the data of a message of a bidirectional stream after its first, or
// nothing for eof.
func (f *Frame) Relayed() (Content, error) {
	field, content, err := f.Parse()
	switch {
	case err != nil:
		return Content{}, err
	case field == FieldData && content.left > 0 && content.left <= streaming.MaxChunk,
		field == FieldEOF && content.left == 0:
		return content, nil
	default:
		return Content{}, fmt.Errorf("%w: field %d of %d bytes", errFrame, field, content.left)
	}
}

// Parts returns the content in the Frame's buffers, without empty parts.
func (content Content) Parts() (parts [][]byte) {
	c := content.cursor
	for c.fill() {
		parts = append(parts, c.cur)
		c.cur = nil
	}
	return parts
}
