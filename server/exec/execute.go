// Package exec implements Execute and Attach. It relays the events of a command from its
// agent to a caller, and reattaches if the connection to the agent breaks.
package exec

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentcall"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/metrics"
	"github.com/sandgate/sandgate/server/policy"
	"github.com/sandgate/sandgate/server/tracing"
)

// Service implements the calls of SandboxService that follow a command. Make one with
// New.
type Service struct{ cfg Config }

// Config configures a Service. All fields must be set.
type Config struct {
	Router   *agentcall.Router
	Provider providers.Provider
	Metrics  *metrics.Metrics
	Tracing  tracing.Tracing
	// SlowReader is how long a reader that can be dropped may receive nothing.
	SlowReader time.Duration
	Log        *slog.Logger
}

// New returns a Service.
func New(c Config) *Service { return &Service{c} }

// maxGrace bounds disconnect_grace.
const maxGrace = 24 * time.Hour

// Execute implements SandboxService.
func (s *Service) Execute(req *sandboxv1.ExecuteRequest, stream grpc.ServerStreamingServer[sandboxv1.ExecuteResponse]) error {
	if err := validateExecute(req); err != nil {
		return err
	}
	ctx, span := s.cfg.Tracing.StartCommand(stream.Context())
	defer span.End()
	c := call.Of(ctx)
	f := &relay{
		s: s, key: agentcall.KeyOf(ctx, req.GetSandboxId()), expected: req.GetExpectedIncarnation(),
		execID: req.GetExecId(), until: req.GetFollowUntil(), out: stream, call: c, since: c.Start, span: span,
	}
	f.begin = func(ctx context.Context, conn *agentconn.Conn) (grpc.ClientStream, error) {
		ctx, confinement, err := s.cfg.Router.WithCallContext(ctx, conn, req)
		if err != nil {
			return nil, err
		}
		if err := policy.RefuseCommand(confinement, req); err != nil {
			return nil, err
		}
		return conn.OpenStream(tracing.WithContext(ctx), agentv1.AgentService_Execute_FullMethodName, req)
	}
	// The command waits for this reader, as for a pipe: dropping it would kill a
	// command whose user only pauses.
	if req.GetDetach() || req.GetOnFull() == sandboxv1.OnFull_ON_FULL_EVICT {
		return f.runDroppable(ctx)
	}
	return f.run(ctx)
}

func validateExecute(req *sandboxv1.ExecuteRequest) error {
	var v policy.Violations
	v.SandboxID(req.GetSandboxId())
	v.ID("exec_id", req.GetExecId(), false)
	switch c := req.GetCommand().(type) {
	case *sandboxv1.ExecuteRequest_Shell:
		v.NoNUL("shell", c.Shell)
	case *sandboxv1.ExecuteRequest_Argv:
		args := c.Argv.GetArgs()
		if len(args) == 0 || args[0] == "" {
			v.Add("argv.args", "must begin with a program")
		}
		v.Argv("argv.args", args)
		if req.GetShellPath() != "" {
			v.Add("shell_path", "is only for a shell command")
		}
	default:
		v.Add("command", "one of shell and argv must be given")
	}
	v.OptionalPath("shell_path", req.GetShellPath())
	v.OptionalPath("cwd", req.GetCwd())
	v.Env("env", req.GetEnv())
	v.Duration("timeout", req.GetTimeout(), 0)
	v.Duration("disconnect_grace", req.GetDisconnectGrace(), maxGrace)
	v.NotNegative("max_output_bytes", req.GetMaxOutputBytes())
	v.Enum("output_mode", int32(req.GetOutputMode()), sandboxv1.OutputMode_name)
	v.Enum("on_full", int32(req.GetOnFull()), sandboxv1.OnFull_name)
	v.Enum("follow_until", int32(req.GetFollowUntil()), sandboxv1.FollowUntil_name)
	if req.GetTerminal() != nil {
		v.Terminal("terminal", req.GetTerminal())
	}
	return v.Err()
}
