package exec

import (
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/agentcall"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/policy"
)

// Attach implements SandboxService.
func (s *Service) Attach(req *sandboxv1.AttachRequest, stream grpc.ServerStreamingServer[sandboxv1.AttachResponse]) error {
	var v policy.Violations
	v.SandboxID(req.GetSandboxId())
	v.ID("exec_id", req.GetExecId(), true)
	v.NotNegative("position", req.GetPosition())
	v.Enum("follow_until", int32(req.GetFollowUntil()), sandboxv1.FollowUntil_name)
	if err := v.Err(); err != nil {
		return err
	}
	ctx := stream.Context()
	c := call.Of(ctx)
	f := &relay{
		s: s, key: agentcall.KeyOf(ctx, req.GetSandboxId()), expected: req.GetExpectedIncarnation(),
		execID: req.GetExecId(), until: req.GetFollowUntil(), position: req.GetPosition(), out: stream, call: c,
		span: trace.SpanFromContext(ctx), attached: true,
	}
	f.begin = f.reattach
	return f.runDroppable(ctx)
}
