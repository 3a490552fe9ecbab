package fake

import (
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// WatchSandboxes sends events named "e1" and so on, whose cursors are their numbers. It
// breaks after each second one.
func (s *Server) WatchSandboxes(r *sandboxv1.WatchSandboxesRequest, stream grpc.ServerStreamingServer[sandboxv1.WatchSandboxesResponse]) error {
	from := 0
	if r.GetCursor() != "" {
		var err error
		if from, err = strconv.Atoi(r.GetCursor()); err != nil {
			return Error(codes.InvalidArgument, "REQUEST_INVALID", "cursor: malformed")
		}
	}
	if err := stream.Send(&sandboxv1.WatchSandboxesResponse{Cursor: strconv.Itoa(from)}); err != nil {
		return err
	}
	for i := from + 1; i <= from+2; i++ {
		e := &sandboxv1.SandboxEvent{EventId: "e" + strconv.Itoa(i), Type: sandboxv1.EventType_EVENT_TYPE_CREATED, SandboxId: "s", Labels: r.GetLabels()}
		if err := stream.Send(&sandboxv1.WatchSandboxesResponse{Cursor: strconv.Itoa(i), Event: e}); err != nil {
			return err
		}
	}
	return status.Error(codes.Unavailable, "broken")
}
