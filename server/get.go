package server

import (
	"context"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/agentcall"
	"github.com/sandgate/sandgate/server/policy"
)

// GetSandbox implements SandboxService.
func (s *Server) GetSandbox(ctx context.Context, req *sandboxv1.GetSandboxRequest) (*sandboxv1.GetSandboxResponse, error) {
	var v policy.Violations
	v.SandboxID(req.GetSandboxId())
	if err := v.Err(); err != nil {
		return nil, err
	}
	key := agentcall.KeyOf(ctx, req.GetSandboxId())
	info, err := s.agents.Lookup(ctx, key)
	if err != nil {
		return nil, s.router.NotFoundReason(key, err)
	}
	return &sandboxv1.GetSandboxResponse{Sandbox: s.sandbox(info)}, nil
}
