package server

import (
	"context"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/policy"
	"github.com/sandgate/sandgate/streaming"
)

// WriteStdin implements SandboxService. Offsets make it safe to repeat.
func (s *Server) WriteStdin(ctx context.Context, req *sandboxv1.WriteStdinRequest) (*sandboxv1.WriteStdinResponse, error) {
	var v policy.Violations
	v.SandboxID(req.GetSandboxId())
	v.ID("exec_id", req.GetExecId(), true)
	v.NotNegative("offset", req.GetOffset())
	if len(req.GetData()) > streaming.MaxChunk {
		v.Add("data", "must be at most %d bytes", streaming.MaxChunk)
	}
	if err := v.Err(); err != nil {
		return nil, err
	}
	c := callOf(ctx)
	c.bytes.Store(int64(len(req.GetData())))
	return callAgent(ctx, s, req, nil, idempotent, func(ctx context.Context, a agentv1.AgentServiceClient, c *agentv1.Confinement, l *agentv1.Limits) (*agentv1.WriteStdinResponse, error) {
		return a.WriteStdin(ctx, &agentv1.WriteStdinRequest{Request: req, Confinement: c, Limits: l})
	})
}
