package process

import (
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/sandgate/sandgate/agent/fault"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Execute starts a command, or joins the one with the same exec_id, and follows
// it.
func (s *Service) Execute(env *agentv1.ExecuteRequest, stream grpc.ServerStreamingServer[agentv1.ExecuteResponse]) error {
	s.touch()
	if err := s.checkExecute(env); err != nil {
		return err
	}
	r := env.GetRequest()
	c, isNew, err := s.claim(env)
	for err == nil && !isNew {
		<-c.ready
		if c.failed != nil {
			return c.failed
		}
		if c.attach() {
			break
		}
		c, isNew, err = s.claim(env)
	}
	if err != nil {
		return err
	}
	if isNew {
		// The caller follows from the first byte, even if the command ends before
		// this call gets that far.
		c.followers = 1
		// Calls that joined must be woken even if the start panics.
		err := fault.Catch(func() error { return s.startCommand(stream.Context(), c, env) })
		s.setReady(c, s.recovery.Report("the start of a command", err))
		if err != nil {
			return c.failed
		}
	}
	f := follower{command: c, stream: stream, joined: !isNew, until: r.GetFollowUntil(), wrap: wrapExecute}
	return f.run()
}

func wrapExecute(event proto.Message) proto.Message {
	switch e := event.(type) {
	case *sandboxv1.Started:
		return &agentv1.ExecuteResponse{Event: &agentv1.ExecuteResponse_Started{Started: e}}
	case *sandboxv1.Gap:
		return &agentv1.ExecuteResponse{Event: &agentv1.ExecuteResponse_Gap{Gap: e}}
	case *sandboxv1.Exited:
		return &agentv1.ExecuteResponse{Event: &agentv1.ExecuteResponse_Exited{Exited: e}}
	}
	panic("process: unknown event")
}
