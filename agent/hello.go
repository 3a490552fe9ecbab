package agent

import (
	"context"
	"os"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandgate/sandgate/agent/landlock"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
)

// Hello says what this agent is and can do.
func (a *Agent) Hello(context.Context, *agentv1.HelloRequest) (*agentv1.HelloResponse, error) {
	capabilities := []string{"stdin", "terminal", "attach", "signal", "join", "detach", CallIDCapability}
	if restricted.Load() {
		capabilities = append(capabilities, DomainCapability)
	}
	if landlock.Writes() {
		capabilities = append(capabilities, WritePrefixesCapability)
	}
	return &agentv1.HelloResponse{
		AgentVersion: a.cfg.Version, ProtocolMinor: ProtocolMinor, Incarnation: a.cfg.Incarnation,
		KillMode: a.KillMode(), LandlockAbi: int32(landlock.ABI()), Openat2: a.Openat2(),
		MemoryCgroup: a.cgroups != nil && a.cgroups.memory, Uid: int32(os.Getuid()), WorkingDirectory: a.cfg.Workdir,
		Capabilities: capabilities,
	}, nil
}

// KillMode says how descendants of a command are found.
func (a *Agent) KillMode() agentv1.KillMode {
	if a.cgroups != nil {
		return agentv1.KillMode_KILL_MODE_CGROUP
	}
	return agentv1.KillMode_KILL_MODE_SUBREAPER
}

// GetActivity returns how many commands run and for how long nothing has run.
func (a *Agent) GetActivity(context.Context, *agentv1.GetActivityRequest) (*agentv1.GetActivityResponse, error) {
	commands := a.running.Load()
	calls, idle := a.Active()
	idle = min(idle, time.Since(a.started)-time.Duration(a.last.Load()))
	if commands > 0 || calls > 0 {
		idle = 0
	}
	return &agentv1.GetActivityResponse{RunningCommands: int32(commands), IdleTime: durationpb.New(idle)}, nil
}

// Shutdown kills every command and then ends the agent.
func (a *Agent) Shutdown(context.Context, *agentv1.ShutdownRequest) (*agentv1.ShutdownResponse, error) {
	a.stopCommands()
	a.signalStopped()
	return &agentv1.ShutdownResponse{}, nil
}
