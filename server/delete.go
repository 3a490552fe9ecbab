package server

import (
	"context"
	"errors"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentcall"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/events"
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
	key := agentcall.KeyOf(ctx, req.GetSandboxId())
	err := s.remove(ctx, key, providers.Condition{Incarnation: req.GetExpectedIncarnation()})
	if req.GetAllowMissing() && errors.Is(err, providers.ErrNotFound) {
		return &sandboxv1.DeleteSandboxResponse{}, nil
	}
	if err != nil {
		return nil, s.router.NotFoundReason(key, err)
	}
	return &sandboxv1.DeleteSandboxResponse{Deleted: true}, nil
}

// remove deletes a tenant's sandbox and ends this server's streams to it, which
// then report SANDBOX_STOPPED.
func (s *Server) remove(ctx context.Context, key agentconn.Key, c providers.Condition) error {
	info, err := s.agents.Lookup(ctx, key)
	if err != nil {
		return err
	}
	if c.Incarnation != "" && c.Incarnation != info.Incarnation {
		return fault.Replaced(key.ID, info.Incarnation)
	}
	if err := s.provider.Delete(ctx, key.Name, c); err != nil {
		return err
	}
	s.book.Forget(key.Name, info.Incarnation)
	s.noteEvent(ctx, events.Ended, info)
	s.agents.Drop(key.Name)
	return nil
}
