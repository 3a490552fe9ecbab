package agent

import (
	"google.golang.org/grpc"

	"github.com/sandgate/sandgate/agent/fault"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
)

// Execute starts a command, or joins the one with the same exec_id, and
// follows it.
func (a *Agent) Execute(env *agentv1.ExecuteRequest, stream grpc.ServerStreamingServer[agentv1.ExecuteResponse]) error {
	a.touch()
	if err := a.checkExecute(env); err != nil {
		return err
	}
	r := env.GetRequest()
	c, fresh, err := a.claim(env)
	for err == nil && !fresh {
		<-c.ready
		if c.failed != nil {
			return c.failed
		}
		if c.attach() {
			break
		}
		c, fresh, err = a.claim(env)
	}
	if err != nil {
		return err
	}
	if fresh {
		// The caller follows from the first byte, also if the command ends
		// before this call gets that far.
		c.followers = 1
		// Those who wait for the start hear of it, however it ends.
		err := fault.Catch(func() error { return a.startCommand(stream.Context(), c, env) })
		a.launched(c, a.recovery.report("the start of a command", err))
		if err != nil {
			return c.failed
		}
	}
	f := follower{command: c, stream: stream, joined: !fresh, until: r.GetFollowUntil(), wrap: wrapExecute}
	return f.run()
}
