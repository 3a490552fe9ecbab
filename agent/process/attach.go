package process

import (
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Attach follows a command from a position.
func (s *Service) Attach(env *agentv1.AttachRequest, stream grpc.ServerStreamingServer[agentv1.AttachResponse]) error {
	s.touch()
	r := env.GetRequest()
	if err := s.checkIncarnation(r.GetExpectedIncarnation()); err != nil {
		return err
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
		until: r.GetFollowUntil(), wrap: wrapAttach,
	}
	return f.run()
}

func wrapAttach(event proto.Message) proto.Message {
	switch e := event.(type) {
	case *sandboxv1.Started:
		return &agentv1.AttachResponse{Event: &agentv1.AttachResponse_Started{Started: e}}
	case *sandboxv1.Gap:
		return &agentv1.AttachResponse{Event: &agentv1.AttachResponse_Gap{Gap: e}}
	case *sandboxv1.Exited:
		return &agentv1.AttachResponse{Event: &agentv1.AttachResponse_Exited{Exited: e}}
	}
	panic("process: unknown event")
}
