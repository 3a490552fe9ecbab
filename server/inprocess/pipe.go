package inprocess

import (
	"context"
	"io"
	"sync"

	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sandgate/sandgate/server/agentconn"
)

// pipe carries the messages of one in-process stream, encoded. A sender waits for its
// receiver.
type pipe struct {
	ctx                context.Context //nolint:containedctx // a stream's own
	codec              agentconn.Codec
	toServer, toClient chan mem.BufferSlice
	sent               chan struct{} // closed by CloseSend
	sentOnce           sync.Once
	done               chan struct{} // closed when the handler has returned err
	err                error
}

// clientEnd is the caller's end of a pipe. Unlike gRPC's, it allows concurrent
// RecvMsgs.
type clientEnd struct{ *pipe }

func (e clientEnd) SendMsg(m any) error {
	data, err := e.codec.Marshal(m)
	if err != nil {
		return err
	}
	select {
	case e.toServer <- data:
		return nil
	case <-e.done:
	case <-e.ctx.Done():
	}
	data.Free()
	return io.EOF
}

func (e clientEnd) RecvMsg(m any) error {
	select {
	case data := <-e.toClient:
		defer data.Free()
		return e.codec.Unmarshal(data, m)
	case <-e.done:
		if e.err != nil {
			return e.err
		}
		return io.EOF
	}
}

func (e clientEnd) CloseSend() error {
	e.sentOnce.Do(func() { close(e.sent) })
	return nil
}

func (e clientEnd) Context() context.Context     { return e.ctx }
func (e clientEnd) Header() (metadata.MD, error) { return nil, nil }
func (e clientEnd) Trailer() metadata.MD         { return nil }

// serverEnd is the handler's end of a pipe.
type serverEnd struct{ *pipe }

func (e serverEnd) SendMsg(m any) error {
	data, err := e.codec.Marshal(m)
	if err != nil {
		return err
	}
	select {
	case e.toClient <- data:
		return nil
	case <-e.ctx.Done():
		data.Free()
		return status.FromContextError(e.ctx.Err()).Err()
	}
}

func (e serverEnd) RecvMsg(m any) error {
	select {
	case data := <-e.toServer:
		defer data.Free()
		return e.codec.Unmarshal(data, m)
	case <-e.sent:
		return io.EOF
	case <-e.ctx.Done():
		return status.FromContextError(e.ctx.Err()).Err()
	}
}

func (e serverEnd) Context() context.Context   { return e.ctx }
func (serverEnd) SetHeader(metadata.MD) error  { return nil }
func (serverEnd) SendHeader(metadata.MD) error { return nil }
func (serverEnd) SetTrailer(metadata.MD)       {}
