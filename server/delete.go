package server

import (
	"context"
	"errors"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/policy"
)

// DeleteSandbox implements SandboxService.
func (s *Server) DeleteSandbox(ctx context.Context, req *sandboxv1.DeleteSandboxRequest) (*sandboxv1.DeleteSandboxResponse, error) {
	var v policy.Violations
	v.SandboxID(req.GetSandboxId())
	if err := v.Err(); err != nil {
		return nil, err
	}
	b := boxOf(ctx, req.GetSandboxId())
	err := s.remove(ctx, b, providers.Condition{Incarnation: req.GetExpectedIncarnation()})
	if req.GetAllowMissing() && errors.Is(err, providers.ErrNotFound) {
		return &sandboxv1.DeleteSandboxResponse{}, nil
	}
	if err != nil {
		return nil, s.explain(b, err)
	}
	return &sandboxv1.DeleteSandboxResponse{Deleted: true}, nil
}

// remove deletes a tenant's sandbox and ends this server's streams to it: they
// find it gone and say SANDBOX_STOPPED.
func (s *Server) remove(ctx context.Context, b box, c providers.Condition) error {
	info, err := s.tunnels.lookup(ctx, b)
	if err != nil {
		return err
	}
	if c.Incarnation != "" && c.Incarnation != info.Incarnation {
		return fault.Replaced(b.id, info.Incarnation)
	}
	if err := s.provider.Delete(ctx, b.name, c); err != nil {
		return err
	}
	s.counts.forget(b.name, info.Incarnation)
	s.tunnels.drop(b.name)
	return nil
}
