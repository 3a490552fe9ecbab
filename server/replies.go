package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"

	"github.com/sandgate/sandgate/server/fault"
)

// replyTimeout bounds the time from the headers of an agent's reply, which it
// sends when the reply is ready, to the reply's end. A connection that is dead is
// found out before.
const replyTimeout = tunnelSilence + tunnelSignOfLife + 10*time.Second

// oneReply makes unary calls of an agent and takes in one reply at a time, so
// that however many calls a sandbox's callers make, its agent can make the server
// hold and decode one reply of the largest size. Calls wait for their headers
// side by side: an agent that works on one does not keep the others waiting.
type oneReply struct {
	grpc.ClientConnInterface
	turn chan struct{} // of capacity 1
}

func newOneReply(conn grpc.ClientConnInterface) *oneReply {
	return &oneReply{ClientConnInterface: conn, turn: make(chan struct{}, 1)}
}

var unaryDesc = &grpc.StreamDesc{}

// errSlowReply is no breach of the protocol: the way may be slow, or the other end
// overloaded.
var errSlowReply = fmt.Errorf("%w: the reply did not end in time", errPipe)

// Invoke implements grpc.ClientConnInterface.
func (c *oneReply) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, err := c.NewStream(ctx, unaryDesc, method, opts...)
	if err != nil {
		return err
	}
	// io.EOF means that the agent has ended the call; RecvMsg returns why. The
	// same holds for an error instead of headers.
	if err := stream.SendMsg(args); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if _, err := stream.Header(); err == nil {
		select {
		case c.turn <- struct{}{}:
			defer func() { <-c.turn }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	late := time.AfterFunc(replyTimeout, func() { cancel(errSlowReply) })
	defer late.Stop()
	err = stream.RecvMsg(reply)
	if err != nil && errors.Is(context.Cause(ctx), errSlowReply) {
		return errSlowReply
	}
	if errors.Is(err, io.EOF) {
		return fault.Misbehaved("a call that ended without a reply")
	}
	return err
}
