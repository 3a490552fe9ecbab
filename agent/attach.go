package agent

import (
	"google.golang.org/grpc"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
)

// Attach follows a command from a position.
func (a *Agent) Attach(env *agentv1.AttachRequest, stream grpc.ServerStreamingServer[agentv1.AttachResponse]) error {
	a.touch()
	r := env.GetRequest()
	if err := a.checkIncarnation(r.GetExpectedIncarnation()); err != nil {
		return err
	}
	if err := checkExecID(r.GetExecId(), false); err != nil {
		return err
	}
	if r.GetPosition() < 0 {
		return invalid("position", "must not be negative")
	}
	c, err := a.find(r.GetExecId())
	for err == nil && !c.attach() {
		c, err = a.find(r.GetExecId())
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
