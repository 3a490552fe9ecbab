package server

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"

	"google.golang.org/grpc"

	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/fault"
)

// inProcess is a connection to the server itself, for requests that reach it by
// another protocol. Its calls are those of a principal that was authenticated there.
// They pass the same interceptors as calls from the network, so permissions, quotas,
// audit records, metrics and shutdown apply. The peer of a call is that of its
// context.
type inProcess struct {
	s         *Server
	principal authn.Principal
}

var _ grpc.ClientConnInterface = inProcess{}

// Invoke implements grpc.ClientConnInterface.
func (c inProcess) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	ctx, cancel := c.s.gate.Vouch(ctx, method, c.principal)
	defer cancel(nil)
	i := slices.IndexFunc(c.s.desc.Methods, func(m grpc.MethodDesc) bool { return fullMethod(m.MethodName) == method })
	if i < 0 {
		return fmt.Errorf("no call %s", method)
	}
	receive := func(m any) error { return c.s.transcode(args, m) }
	return fault.Catch(func() error {
		resp, err := c.s.desc.Methods[i].Handler(c.s, ctx, receive, c.s.unaryChain)
		if err != nil {
			return err
		}
		return c.s.transcode(resp, reply)
	})
}

// transcode copies a message, either of which may be a Frame.
func (s *Server) transcode(from, to any) error {
	data, err := s.codec.Marshal(from)
	if err != nil {
		return err
	}
	defer data.Free()
	return s.codec.Unmarshal(data, to)
}

// NewStream implements grpc.ClientConnInterface. The call ends with ctx.
func (c inProcess) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	i := slices.IndexFunc(c.s.desc.Streams, func(d grpc.StreamDesc) bool { return fullMethod(d.StreamName) == method })
	if i < 0 {
		return nil, fmt.Errorf("no call %s", method)
	}
	desc := c.s.desc.Streams[i]
	ctx, cancel := c.s.gate.Vouch(ctx, method, c.principal)
	p := &pipe{
		ctx: ctx, codec: c.s.codec, toServer: make(chan mem.BufferSlice), toClient: make(chan mem.BufferSlice),
		sent: make(chan struct{}), done: make(chan struct{}),
	}
	info := &grpc.StreamServerInfo{FullMethod: method, IsClientStream: desc.ClientStreams, IsServerStream: desc.ServerStreams}
	c.s.inProcess.Go(func() {
		defer cancel(nil)
		defer close(p.done)
		p.err = fault.Catch(func() error { return c.s.streamChain(c.s, serverEnd{p}, info, desc.Handler) })
	})
	return clientEnd{p}, nil
}

func fullMethod(name string) string {
	return "/" + sandboxv1.SandboxService_ServiceDesc.ServiceName + "/" + name
}

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

// chainUnary returns interceptors as one, the first of them the outermost.
func chainUnary(list []grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		for _, in := range slices.Backward(list) {
			next := handler
			handler = func(ctx context.Context, req any) (any, error) { return in(ctx, req, info, next) }
		}
		return handler(ctx, req)
	}
}

// chainStream is chainUnary for streams.
func chainStream(list []grpc.StreamServerInterceptor) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		for _, in := range slices.Backward(list) {
			next := handler
			handler = func(srv any, stream grpc.ServerStream) error { return in(srv, stream, info, next) }
		}
		return handler(srv, stream)
	}
}
