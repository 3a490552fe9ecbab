package server

import (
	"context"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentcall"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/events"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/policy"
)

// SuspendSandbox implements SandboxService.
func (s *Server) SuspendSandbox(ctx context.Context, req *sandboxv1.SuspendSandboxRequest) (*sandboxv1.SuspendSandboxResponse, error) {
	key, p, err := s.suspender(ctx, req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	timeout := s.rules().limits.CreateTimeout
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fault.New(
		sandboxv1.ErrorReason_ERROR_REASON_CALL_DEADLINE_EXCEEDED,
		"the sandbox was not suspended within %s; it may be later", timeout))
	defer cancel()
	info, err := p.Suspend(ctx, key.Name)
	if err != nil {
		return nil, s.router.NotFoundReason(key, err)
	}
	s.agents.Drop(key.Name)
	s.noteEvent(ctx, events.StateChanged, info)
	return &sandboxv1.SuspendSandboxResponse{Sandbox: s.sandbox(info)}, nil
}

// ResumeSandbox implements SandboxService.
func (s *Server) ResumeSandbox(ctx context.Context, req *sandboxv1.ResumeSandboxRequest) (*sandboxv1.ResumeSandboxResponse, error) {
	key, p, err := s.suspender(ctx, req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	timeout := s.rules().limits.CreateTimeout
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fault.New(
		sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_START_TIMEOUT,
		"the sandbox did not become ready within %s", timeout))
	defer cancel()
	info, raw, err := p.Resume(ctx, key.Name)
	if err != nil {
		return nil, s.router.NotFoundReason(key, err)
	}
	s.agents.Adopt(ctx, key, info, raw)
	conn, err := s.router.AcquireKnown(ctx, key, info.Incarnation, &info)
	if err != nil {
		return nil, err
	}
	conn.Release()
	s.holdNetwork(info)
	s.awaitNetwork(ctx, info)
	s.noteEvent(ctx, events.StateChanged, info)
	return &sandboxv1.ResumeSandboxResponse{Sandbox: s.sandbox(info)}, nil
}

func (s *Server) suspender(ctx context.Context, id string) (agentconn.Key, providers.Suspender, error) {
	var v policy.Violations
	v.SandboxID(id)
	if err := v.Err(); err != nil {
		return agentconn.Key{}, nil, err
	}
	key := agentcall.KeyOf(ctx, id)
	p, ok := s.provider.(providers.Suspender)
	if !ok {
		return key, nil, fault.Unsupported("suspend", "the provider %s cannot suspend sandboxes", s.described.Name)
	}
	if _, err := s.agents.Lookup(ctx, key); err != nil {
		return key, nil, s.router.NotFoundReason(key, err)
	}
	return key, p, nil
}
