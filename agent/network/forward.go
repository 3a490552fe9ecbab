package network

import (
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/sandgate/sandgate/agent/fault"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// maxConnections bounds the open connections. A caller that sends to a program that
// does not read fills the stream's window, 1 MiB, in the agent.
const maxConnections = 128

// Forward connects to a port of the sandbox and relays both directions until each has
// ended, or one fails.
func (s *Service) Forward(stream grpc.BidiStreamingServer[sandboxv1.ForwardRequest, sandboxv1.ForwardResponse]) error {
	s.touch()
	defer s.touch()
	if s.open.Add(1) > maxConnections {
		s.open.Add(-1)
		return fault.New(codes.ResourceExhausted, sandboxv1.ErrorReason_ERROR_REASON_TOO_MANY_CONNECTIONS,
			fmt.Sprintf("the sandbox has %d open connections, as many as it may have; close some", maxConnections),
			map[string]string{"limit": fmt.Sprint(maxConnections)}).Retry(time.Second)
	}
	defer s.open.Add(-1)

	first, err := stream.Recv()
	if err != nil {
		return err //nolint:wrapcheck // gRPC's own status
	}
	start := first.GetStart()
	if start == nil {
		return invalid("payload", "the first message must be start")
	}
	conn, err := dial(stream.Context(), start)
	if err != nil {
		return err
	}
	opened := &sandboxv1.ForwardOpened{Incarnation: s.cfg.Incarnation, Address: conn.RemoteAddr().String()}
	if err := stream.Send(&sandboxv1.ForwardResponse{Payload: &sandboxv1.ForwardResponse_Opened{Opened: opened}}); err != nil {
		reset(conn)
		return err //nolint:wrapcheck // gRPC's own status
	}
	r := &relay{s: s, stream: stream, conn: conn, port: start.GetPort()}
	return r.run()
}

// reset closes the connection so that the program reads an error and not an end.
func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}
