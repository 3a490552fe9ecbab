package agentconn

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/sandgate/sandgate/server/fault"
)

// serverStream describes a stream that is opened without generated code.
var serverStream = &grpc.StreamDesc{ServerStreams: true}

// OpenStream opens a server stream of the agent, to receive Frames from.
func (c *Conn) OpenStream(ctx context.Context, method string, req proto.Message) (grpc.ClientStream, error) {
	stream, err := c.client.NewStream(ctx, serverStream, method)
	if err != nil {
		return nil, err
	}
	// RecvMsg returns the reason if SendMsg fails.
	if err := stream.SendMsg(req); err == nil {
		_ = stream.CloseSend()
	}
	return stream, nil
}

// endTimeout bounds the time from the last message of a stream to its end.
const endTimeout = 5 * time.Second

// ExpectEnd checks that nothing follows the last message. cancel ends the stream
// if the agent keeps it open.
func ExpectEnd(in grpc.ClientStream, cancel func()) error {
	late := time.AfterFunc(endTimeout, cancel)
	defer late.Stop()
	var fr Frame
	err := in.RecvMsg(&fr)
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err == nil:
		fr.Free()
		return fault.Misbehaved("a message after the end")
	default:
		// The caller has everything, so the stream's status does not matter.
		return nil
	}
}
