package server

import (
	"context"
	"errors"
	"time"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
)

// cleanupTimeout bounds what undoes a failed creation.
const cleanupTimeout = 30 * time.Second

// CreateSandbox implements SandboxService.
func (s *Server) CreateSandbox(ctx context.Context, req *sandboxv1.CreateSandboxRequest) (*sandboxv1.CreateSandboxResponse, error) {
	id := req.GetSandboxId()
	if id == "" {
		id = newID("sb-")
	}
	var v violations
	v.sandboxID(id)
	v.labels("labels", req.GetLabels())
	if err := v.err(); err != nil {
		return nil, err
	}
	b := boxOf(ctx, id)
	spec, err := s.spec(b, req)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.Limits.CreateTimeout, faultf(
		sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_START_TIMEOUT,
		"the sandbox did not become ready within %s", s.cfg.Limits.CreateTimeout))
	defer cancel()
	info, err := s.provider.Create(ctx, b.name, spec)
	if errors.Is(err, providers.ErrExists) {
		return nil, faultf(sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_SPEC_DIFFERS,
			"sandbox %q exists with another spec; use another id, or delete it first", id).because(err)
	}
	if err != nil {
		return nil, err
	}
	s.expired.remove(b.name)
	if err := s.ready(ctx, b, info); err != nil {
		return nil, err
	}
	return &sandboxv1.CreateSandboxResponse{Sandbox: sandbox(info), Created: info.Created}, nil
}

// ready makes sure that a command can run, and removes a sandbox of this call
// in which none can.
func (s *Server) ready(ctx context.Context, b box, info providers.Info) error {
	t, err := s.reachKnown(ctx, b, info.Incarnation, &info)
	if err == nil {
		t.release()
		return nil
	}
	if !info.Created {
		return err
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if undone := s.provider.Delete(undo, b.name, providers.Condition{Incarnation: info.Incarnation}); ignoreNotFound(undone) != nil {
		s.log.ErrorContext(ctx, "a sandbox that could not be used could not be deleted",
			"tenant", b.tenant, "sandbox_id", b.id, "error", undone)
	}
	s.tunnels.drop(b.name)
	return err
}
