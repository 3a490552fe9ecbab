package sandgate

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"

	"google.golang.org/grpc/codes"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// ConnectOption changes where [Sandbox.Connect] connects to.
type ConnectOption func(*sandboxv1.ForwardStart)

// ConnectHost sets the address inside the sandbox: "localhost", or a loopback address.
// Default: "localhost", which is 127.0.0.1 and, if nothing listens there, ::1.
func ConnectHost(host string) ConnectOption {
	return func(s *sandboxv1.ForwardStart) { s.Host = host }
}

// Connect opens a connection to a TCP port that a program in the sandbox listens on. ctx
// bounds the opening alone. If nothing listens, the error is [ErrPortClosed]. A
// connection cannot be resumed: after [ErrConnectionLost] or [ErrUnavailable], open
// another.
func (s *Sandbox) Connect(ctx context.Context, port int, opts ...ConnectOption) (*Conn, error) {
	start := &sandboxv1.ForwardStart{SandboxId: s.id, ExpectedIncarnation: s.Incarnation, Port: int32(min(max(port, 0), 1<<16))}
	for _, o := range opts {
		o(start)
	}
	retry := s.client.retry(s.client.retryWindow)
	for {
		conn, err := s.connect(ctx, start)
		switch {
		case err == nil:
			return conn, nil
		case ctx.Err() != nil:
			return nil, cancelled(ctx)
		case !retry.again(ctx, err):
			return nil, err
		}
	}
}

// connect makes one attempt.
func (s *Sandbox) connect(ctx context.Context, start *sandboxv1.ForwardStart) (*Conn, error) {
	inner, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	stream, opened, err := open(inner, s.client.stub, start)
	if !stop() && err == nil {
		err = cancelled(ctx)
	}
	if err != nil {
		cancel(err)
		return nil, err
	}
	address, port, err := net.SplitHostPort(opened.GetAddress())
	remote := &net.TCPAddr{IP: net.ParseIP(address)}
	if n, bad := strconv.Atoi(port); err == nil && bad == nil {
		remote.Port = n
	}
	return newConn(stream, cancel, Addr{SandboxID: s.id, Incarnation: opened.GetIncarnation(), TCPAddr: remote}), nil
}

// open opens a stream and waits until the port has accepted the connection.
func open(ctx context.Context, stub sandboxv1.SandboxServiceClient, start *sandboxv1.ForwardStart) (sandboxv1.SandboxService_ForwardClient, *sandboxv1.ForwardOpened, error) {
	stream, err := stub.Forward(ctx)
	if err != nil {
		return nil, nil, err
	}
	// If sending fails, receiving returns the reason.
	_ = stream.Send(&sandboxv1.ForwardRequest{Payload: &sandboxv1.ForwardRequest_Start{Start: start}})
	first, err := stream.Recv()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = local(ErrUnavailable, codes.Unavailable, err, "the stream ended before the port answered")
		}
		return nil, nil, err
	}
	if first.GetOpened() == nil {
		return nil, nil, local(ErrInternal, codes.DataLoss, nil, "the server broke the protocol: the first message is not opened")
	}
	return stream, first.GetOpened(), nil
}

// Addr is an address in a sandbox.
type Addr struct {
	SandboxID   string
	Incarnation string
	*net.TCPAddr
}

var _ net.Addr = Addr{}

// String returns the sandbox's id, a slash, and address and port.
func (a Addr) String() string { return a.SandboxID + "/" + a.TCPAddr.String() }
