package process

import (
	"google.golang.org/grpc"

	"github.com/sandgate/sandgate/agent/fault"
	"github.com/sandgate/sandgate/agent/protocol"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Execute starts a command, or joins the one with the same exec_id, and follows
// it.
func (s *Service) Execute(r *sandboxv1.ExecuteRequest, stream grpc.ServerStreamingServer[sandboxv1.ExecuteResponse]) error {
	s.touch()
	if err := checkExecute(r); err != nil {
		return err
	}
	call, err := protocol.CallContext(stream.Context())
	if err != nil {
		return invalid(protocol.CallContextKey, "%v", err)
	}
	c, isNew, err := s.claim(stream.Context(), r, call.GetLimits())
	for err == nil && !isNew {
		<-c.ready
		if c.failed != nil {
			return c.failed
		}
		if c.attach() {
			break
		}
		c, isNew, err = s.claim(stream.Context(), r, call.GetLimits())
	}
	if err != nil {
		return err
	}
	if isNew {
		// The caller follows from the first byte, even if the command ends before
		// this call gets that far.
		c.followers = 1
		// Calls that joined must be woken even if the start panics.
		err := fault.Catch(func() error { return s.startCommand(stream.Context(), c, r, call) })
		s.setReady(c, s.recovery.Report("the start of a command", err))
		if err != nil {
			return c.failed
		}
	}
	f := follower{command: c, stream: stream, joined: !isNew, until: r.GetFollowUntil()}
	return f.run()
}
