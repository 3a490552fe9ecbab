package server

import (
	"context"
	"errors"
	"io"
	"path"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/quota"
)

// receive reads the only message of a call within Timing.Receive, and begins
// the call. A goroutine that waits beside gRPC's would cost each call a hundredth of the
// time of a short command, so whoever ends the call earlier ends its stream.
func (s *Server) receive(ctx context.Context, recv func(any) error, m any) error {
	var early atomic.Pointer[error] // why the call ended before its message had arrived
	end := func(err error) {
		early.Store(&err)
		endStream(ctx, err)
	}
	late := time.AfterFunc(s.cfg.Timing.Receive, func() { end(s.receivedLate()) })
	defer late.Stop()
	request, err := s.gate.Expect(ctx, func(exceeded error) { end(s.overRequests(exceeded)) })
	if err != nil {
		return s.overRequests(err)
	}
	fr := new(agentconn.Frame)
	err = s.received(recv(fr))
	defer fr.Free()
	if err == nil {
		err = s.decode(ctx, fr, m, request)
	}
	switch cause := early.Load(); {
	case cause != nil:
		return *cause
	case err != nil:
		return err
	case !late.Stop():
		return s.receivedLate()
	}
	return call.Of(ctx).Begin(ctx, s.audit, m)
}

func (s *Server) receivedLate() error {
	return fault.New(sandboxv1.ErrorReason_ERROR_REASON_CALL_DEADLINE_EXCEEDED,
		"the call's message did not arrive within %s", s.cfg.Timing.Receive)
}

// endStream sends the status of a call whose handler waits for a message. If its context
// ended first, gRPC would send CANCELLED. WriteStatus is a method of gRPC's stream that
// is not part of its API.
func endStream(ctx context.Context, err error) {
	stream, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ WriteStatus(*status.Status) error })
	if !ok {
		return // a call within the process
	}
	// It fails if the connection has ended, and the stream with it.
	_ = stream.WriteStatus(fault.From(ctx, err).Status(call.Of(ctx).RequestID))
}

// received turns gRPC's error about what a caller has sent into the caller's own, so that
// it counts as no failure of the server. Other errors stay as they are.
func (s *Server) received(err error) error {
	switch code := status.Code(err); {
	case code == codes.ResourceExhausted:
		return s.tooLarge()
	case code == codes.Internal, code == codes.Unimplemented, errors.Is(err, io.ErrUnexpectedEOF):
		return malformed(err)
	// The context of the call may end a moment after its stream.
	case code == codes.Canceled:
		return context.Canceled
	case code == codes.DeadlineExceeded:
		return context.DeadlineExceeded
	default:
		return err
	}
}

func malformed(err error) error {
	return fault.New(sandboxv1.ErrorReason_ERROR_REASON_REQUEST_INVALID, "the call's messages are malformed").WithCause(err)
}

func (s *Server) tooLarge() error {
	return tooLarge(s.cfg.Limits.MaxMessageBytes, "send content through Upload")
}

func tooLarge(limit int, instead string) error {
	return fault.New(sandboxv1.ErrorReason_ERROR_REASON_MESSAGE_TOO_LARGE,
		"the message is larger than %d bytes; %s", limit, instead).
		With("limit_bytes", strconv.Itoa(limit))
}

// overRequests is overQuota without a delay, in which the call would go on receiving.
func (s *Server) overRequests(err error) error {
	if exceeded := (*quota.Exceeded)(nil); errors.As(err, &exceeded) {
		s.metrics.QuotaRefused(exceeded.Quota)
	}
	return quotaFault(err)
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
	if fr.Data.Len() > s.cfg.Limits.MaxMessageBytes {
		return s.tooLarge()
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
