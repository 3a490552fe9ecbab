package process

import (
	"google.golang.org/grpc"

	"github.com/sandgate/sandgate/agent/protocol"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Attach follows a command from a position.
func (s *Service) Attach(r *sandboxv1.AttachRequest, stream grpc.ServerStreamingServer[sandboxv1.AttachResponse]) error {
	if !protocol.Inspects(stream.Context()) {
		s.touch()
	}
	if err := checkExecID(r.GetExecId(), false); err != nil {
		return err
	}
	if r.GetPosition() < 0 {
		return invalid("position", "must not be negative")
	}
	c, err := s.find(r.GetExecId())
	for err == nil && !c.attach() {
		c, err = s.find(r.GetExecId())
	}
	if err != nil {
		return err
	}
	f := follower{
		command: c, stream: stream, joined: true, position: r.GetPosition(),
		until: r.GetFollowUntil(),
	}
	return f.run()
}
