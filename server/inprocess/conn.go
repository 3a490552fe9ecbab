// Package inprocess connects to a gRPC server of the same process, for requests that
// reach it by another protocol.
package inprocess

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/fault"
)

// Server is a service to connect to.
type Server struct {
	Desc  *grpc.ServiceDesc
	Impl  any
	Codec agentconn.Codec
	// Unary and Stream are all interceptors of the service.
	Unary  grpc.UnaryServerInterceptor
	Stream grpc.StreamServerInterceptor
	// Vouch begins a call of an authenticated principal. The function ends it.
	Vouch func(ctx context.Context, method string, who authn.Principal) (context.Context, context.CancelCauseFunc)

	streams sync.WaitGroup
}

// Connect returns a connection whose calls are those of a principal that was
// authenticated by the other protocol. They pass the same interceptors as calls from the
// network, so permissions, quotas, audit records, metrics and shutdown apply. The peer of
// a call is that of its context.
func (s *Server) Connect(who authn.Principal) grpc.ClientConnInterface { return conn{s, who} }

// Wait returns when no stream is open.
func (s *Server) Wait() { s.streams.Wait() }

type conn struct {
	s         *Server
	principal authn.Principal
}

// Invoke implements grpc.ClientConnInterface.
func (c conn) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	ctx, cancel := c.s.Vouch(ctx, method, c.principal)
	defer cancel(nil)
	i := slices.IndexFunc(c.s.Desc.Methods, func(m grpc.MethodDesc) bool { return c.s.full(m.MethodName) == method })
	if i < 0 {
		return fmt.Errorf("no call %s", method)
	}
	receive := func(m any) error { return c.s.transcode(args, m) }
	return fault.Catch(func() error {
		resp, err := c.s.Desc.Methods[i].Handler(c.s.Impl, ctx, receive, c.s.Unary)
		if err != nil {
			return err
		}
		return c.s.transcode(resp, reply)
	})
}

// transcode copies a message, either of which may be a Frame.
func (s *Server) transcode(from, to any) error {
	data, err := s.Codec.Marshal(from)
	if err != nil {
		return err
	}
	defer data.Free()
	return s.Codec.Unmarshal(data, to)
}

// NewStream implements grpc.ClientConnInterface. The call ends with ctx.
func (c conn) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	i := slices.IndexFunc(c.s.Desc.Streams, func(d grpc.StreamDesc) bool { return c.s.full(d.StreamName) == method })
	if i < 0 {
		return nil, fmt.Errorf("no call %s", method)
	}
	desc := c.s.Desc.Streams[i]
	ctx, cancel := c.s.Vouch(ctx, method, c.principal)
	p := &pipe{
		ctx: ctx, codec: c.s.Codec, toServer: make(chan mem.BufferSlice), toClient: make(chan mem.BufferSlice),
		sent: make(chan struct{}), done: make(chan struct{}),
	}
	info := &grpc.StreamServerInfo{FullMethod: method, IsClientStream: desc.ClientStreams, IsServerStream: desc.ServerStreams}
	c.s.streams.Go(func() {
		defer cancel(nil)
		defer close(p.done)
		p.err = fault.Catch(func() error { return c.s.Stream(c.s.Impl, serverEnd{p}, info, desc.Handler) })
	})
	return clientEnd{p}, nil
}

func (s *Server) full(name string) string { return "/" + s.Desc.ServiceName + "/" + name }
