package agent

import (
	"context"
	"os"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandgate/sandgate/agent/landlock"
	"github.com/sandgate/sandgate/agent/process"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
)

// Hello reports the agent's version and capabilities.
func (a *Agent) Hello(context.Context, *agentv1.HelloRequest) (*agentv1.HelloResponse, error) {
	capabilities := []string{"stdin", "terminal", "attach", "signal", "join", "detach", CallIDCapability}
	return &agentv1.HelloResponse{
		AgentVersion: a.cfg.Version, ProtocolMinor: ProtocolMinor, Incarnation: a.cfg.Incarnation,
		KillMode: a.KillMode(), LandlockAbi: int32(landlock.ABI()), Openat2: a.Openat2(),
		MemoryCgroup: a.MemoryCgroup(), Uid: int32(os.Getuid()), WorkingDirectory: a.cfg.Workdir,
		Capabilities: append(capabilities, process.Capabilities()...),
	}, nil
}

// GetActivity returns how many commands run and for how long nothing has run.
func (a *Agent) GetActivity(context.Context, *agentv1.GetActivityRequest) (*agentv1.GetActivityResponse, error) {
	commands, idle := a.processService.Active()
	calls, fileIdle := a.fileService.Active()
	idle = min(idle, fileIdle)
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
