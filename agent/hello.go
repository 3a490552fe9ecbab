package agent

import (
	"context"
	"os"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandgate/sandgate/agent/process"
	"github.com/sandgate/sandgate/agent/protocol"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
)

// Hello reports the agent's version and capabilities.
func (a *Agent) Hello(context.Context, *agentv1.HelloRequest) (*agentv1.HelloResponse, error) {
	return &agentv1.HelloResponse{
		AgentVersion: a.cfg.Version, ProtocolMinor: protocol.Minor, Incarnation: a.cfg.Incarnation,
		KillMode: a.KillMode(), Uid: int32(os.Getuid()),
		Capabilities: append(process.Capabilities(), protocol.CallIDCapability),
	}, nil
}

// GetActivity returns how many commands run and for how long nothing has run.
func (a *Agent) GetActivity(context.Context, *agentv1.GetActivityRequest) (*agentv1.GetActivityResponse, error) {
	commands, idle := a.processService.Active()
	calls, fileIdle := a.fileService.Active()
	idle = min(idle, fileIdle, a.Idle())
	if commands > 0 || calls > 0 {
		idle = 0
	}
	return &agentv1.GetActivityResponse{RunningCommands: int32(commands), IdleTime: durationpb.New(idle)}, nil
}

// Shutdown kills all commands and then ends the agent.
func (a *Agent) Shutdown(context.Context, *agentv1.ShutdownRequest) (*agentv1.ShutdownResponse, error) {
	a.stop()
	return &agentv1.ShutdownResponse{}, nil
}
