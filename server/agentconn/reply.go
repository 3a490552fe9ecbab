package agentconn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"

	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/limit"
)

// replyTimeout bounds the time from the headers of an agent's reply, which it
// sends when the reply is ready, to the reply's end. Keepalive detects a dead
// connection earlier.
const replyTimeout = keepaliveTime + keepaliveTimeout + 10*time.Second

// boundedReplies makes unary calls of an agent and receives one reply at a time.
// However many calls a sandbox has, its agent makes the server hold at most one
// reply of the largest size. Calls wait for their headers concurrently, so a slow
// call delays no other.
type boundedReplies struct {
	grpc.ClientConnInterface
	receiving limit.Slots // held while a reply is received
}

func newBoundedReplies(conn grpc.ClientConnInterface) *boundedReplies {
	return &boundedReplies{ClientConnInterface: conn, receiving: limit.New(1)}
}

var unaryDesc = &grpc.StreamDesc{}

// errSlowReply is no breach of the protocol: the network may be slow, or the
// agent overloaded.
var errSlowReply = fmt.Errorf("%w: the reply did not end in time", ErrBroken)

// Invoke implements grpc.ClientConnInterface.
func (c *boundedReplies) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, err := c.NewStream(ctx, unaryDesc, method, opts...)
	if err != nil {
		return err
	}
	// io.EOF means that the agent has ended the call. RecvMsg returns the reason,
	// also if there are no headers.
	if err := stream.SendMsg(args); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if _, err := stream.Header(); err == nil {
		if err := c.receiving.Acquire(ctx); err != nil {
			return err
		}
		defer c.receiving.Release()
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
