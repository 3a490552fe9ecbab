package server

import (
	"context"
	"errors"
	"path"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/quota"
)

// receiveTimeout bounds the time that the only message of a call may take.
const receiveTimeout = 2 * time.Minute

var errReceiveTimeout = fault.New(sandboxv1.ErrorReason_ERROR_REASON_CALL_DEADLINE_EXCEEDED,
	"the call's message did not arrive within %s", receiveTimeout)

// receive reads the only message of a call within receiveTimeout, and begins
// the call.
func (s *Server) receive(ctx context.Context, recv func(any) error, m any) error {
	request, err := s.gate.Expect(ctx)
	if err != nil {
		return s.overRequests(err)
	}
	fr, err := receiveOnly(request, recv)
	if err != nil {
		return s.overRequests(err)
	}
	defer fr.Free()
	if err := s.decode(ctx, fr, m, request); err != nil {
		return err
	}
	return call.Of(ctx).Begin(ctx, s.audit, m)
}

// overRequests is overQuota without a delay, in which the call would go on receiving.
func (s *Server) overRequests(err error) error {
	if exceeded := (*quota.Exceeded)(nil); errors.As(err, &exceeded) {
		s.metrics.QuotaRefused(exceeded.Quota)
	}
	return quotaFault(err)
}

// receiveOnly reads the only message of a call. It returns without one if the call must
// end first: gRPC would answer a call whose context ends with CANCELLED.
func receiveOnly(request *quota.Request, recv func(any) error) (*agentconn.Frame, error) {
	fr := new(agentconn.Frame)
	received := make(chan error, 1)
	// It ends with the call.
	go func() { received <- fault.Catch(func() error { return recv(fr) }) }()
	late := time.NewTimer(receiveTimeout)
	defer late.Stop()
	select {
	case err := <-received:
		return fr, err
	case <-request.Cut():
		return nil, request.Exceeded()
	case <-late.C:
		return nil, errReceiveTimeout
	}
}

// refuseCompression rejects a call whose messages are compressed: a small one could
// become large in memory, before anything can count it.
func refuseCompression(ctx context.Context) error {
	stream, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ RecvCompress() string })
	if !ok {
		return nil // a call within the process
	}
	if name := stream.RecvCompress(); name != "" && name != encoding.Identity {
		return fault.New(sandboxv1.ErrorReason_ERROR_REASON_FEATURE_UNSUPPORTED, "this server takes no compressed messages").
			With("feature", "grpc-encoding")
	}
	return nil
}

// decode decodes a message of a caller, and counts it if it is the only one of a call:
// then request is not nil. Its errors have a reason, unlike gRPC's own.
func (s *Server) decode(ctx context.Context, fr *agentconn.Frame, m any, request *quota.Request) error {
	s.gate.Took(ctx, fr.Data.Len())
	if limit := s.cfg.Limits.MaxMessageBytes; fr.Data.Len() > limit {
		return fault.New(sandboxv1.ErrorReason_ERROR_REASON_MESSAGE_TOO_LARGE,
			"the message is larger than %d bytes; send content through Upload", limit).
			With("limit_bytes", strconv.Itoa(limit))
	}
	fields, err := fr.Fields(m)
	if err == nil {
		if err := request.Arrived(fr.Data.Len(), fields); err != nil {
			return s.overRequests(err)
		}
		err = s.codec.Unmarshal(fr.Data, m)
	}
	switch {
	case errors.Is(err, agentconn.ErrTooManyFields):
		return fault.New(sandboxv1.ErrorReason_ERROR_REASON_MESSAGE_TOO_LARGE, "the message has %v", err).
			With("limit_fields", strconv.Itoa(agentconn.MaxFields))
	case err != nil:
		return fault.New(sandboxv1.ErrorReason_ERROR_REASON_REQUEST_INVALID, "the message could not be decoded").WithCause(err)
	}
	return nil
}

// beforeRead returns desc with handlers that run the interceptors before the
// message of a unary call is read. A generated handler decodes the message
// first and then calls the interceptors. An unauthenticated caller could then have large
// messages read and decoded, and a message that cannot be decoded would leave
// no log line, audit record or metric. The wrapped handler runs the
// interceptors with a handler that calls the generated one, whose decode
// function is Server.receive. Streams need no rewriting: their handlers call
// RecvMsg.
func (s *Server) beforeRead(desc grpc.ServiceDesc) *grpc.ServiceDesc {
	methods := desc.Methods
	desc.Methods = make([]grpc.MethodDesc, len(methods))
	for i, m := range methods {
		full := "/" + desc.ServiceName + "/" + m.MethodName
		desc.Methods[i] = grpc.MethodDesc{MethodName: m.MethodName, Handler: func(
			srv any, ctx context.Context, dec func(any) error, in grpc.UnaryServerInterceptor,
		) (any, error) {
			return in(ctx, nil, &grpc.UnaryServerInfo{Server: srv, FullMethod: full}, func(ctx context.Context, _ any) (any, error) {
				return m.Handler(srv, ctx, func(msg any) error { return s.receive(ctx, dec, msg) }, nil)
			})
		}}
	}
	return &desc
}

// operation returns the name of a method for logs and metrics. It is
// call.UnknownOperation for a method that a caller invented.
func (s *Server) operation(method string) string {
	service, name := path.Split(strings.TrimPrefix(method, "/"))
	if info, ok := s.services[strings.TrimSuffix(service, "/")]; ok {
		for _, m := range info.Methods {
			if m.Name == name {
				return m.Name
			}
		}
	}
	return call.UnknownOperation
}

func unknownMethod(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	return fault.New(sandboxv1.ErrorReason_ERROR_REASON_FEATURE_UNSUPPORTED,
		"this server does not know %s", fault.Bounded(method)).With("feature", fault.Bounded(method))
}
