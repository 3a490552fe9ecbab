package server

import (
	"context"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/policy"
)

// MakeDirectory implements SandboxService.
func (s *Server) MakeDirectory(ctx context.Context, req *sandboxv1.MakeDirectoryRequest) (*sandboxv1.MakeDirectoryResponse, error) {
	var v policy.Violations
	v.SandboxID(req.GetSandboxId())
	v.Path("path", req.GetPath())
	v.Mode(req.Mode)
	if err := v.Err(); err != nil {
		return nil, err
	}
	return callAgent(ctx, s, req, req.GetAccess(), atMostOnce, func(ctx context.Context, a agentv1.AgentServiceClient, c *agentv1.Confinement, l *agentv1.Limits) (*agentv1.MakeDirectoryResponse, error) {
		return a.MakeDirectory(ctx, &agentv1.MakeDirectoryRequest{Request: req, Confinement: c, Limits: l})
	})
}

// MoveFile implements SandboxService.
func (s *Server) MoveFile(ctx context.Context, req *sandboxv1.MoveFileRequest) (*sandboxv1.MoveFileResponse, error) {
	var v policy.Violations
	v.SandboxID(req.GetSandboxId())
	v.Path("source", req.GetSource())
	v.Path("destination", req.GetDestination())
	if err := v.Err(); err != nil {
		return nil, err
	}
	return callAgent(ctx, s, req, req.GetAccess(), atMostOnce, func(ctx context.Context, a agentv1.AgentServiceClient, c *agentv1.Confinement, l *agentv1.Limits) (*agentv1.MoveFileResponse, error) {
		return a.MoveFile(ctx, &agentv1.MoveFileRequest{Request: req, Confinement: c, Limits: l})
	})
}

// RemoveFile implements SandboxService.
func (s *Server) RemoveFile(ctx context.Context, req *sandboxv1.RemoveFileRequest) (*sandboxv1.RemoveFileResponse, error) {
	var v policy.Violations
	v.SandboxID(req.GetSandboxId())
	v.Path("path", req.GetPath())
	if err := v.Err(); err != nil {
		return nil, err
	}
	return callAgent(ctx, s, req, req.GetAccess(), atMostOnce, func(ctx context.Context, a agentv1.AgentServiceClient, c *agentv1.Confinement, l *agentv1.Limits) (*agentv1.RemoveFileResponse, error) {
		return a.RemoveFile(ctx, &agentv1.RemoveFileRequest{Request: req, Confinement: c, Limits: l})
	})
}

// WriteFile implements SandboxService.
func (s *Server) WriteFile(ctx context.Context, req *sandboxv1.WriteFileRequest) (*sandboxv1.WriteFileResponse, error) {
	var v policy.Violations
	v.SandboxID(req.GetSandboxId())
	v.Path("path", req.GetPath())
	v.Mode(req.Mode)
	if err := v.Err(); err != nil {
		return nil, err
	}
	c := callOf(ctx)
	c.bytes.Store(int64(len(req.GetContent())))
	return callAgent(ctx, s, req, req.GetAccess(), atMostOnce, func(ctx context.Context, a agentv1.AgentServiceClient, c *agentv1.Confinement, l *agentv1.Limits) (*agentv1.WriteFileResponse, error) {
		return a.WriteFile(ctx, &agentv1.WriteFileRequest{Request: req, Confinement: c, Limits: l})
	})
}

// EditFile implements SandboxService.
func (s *Server) EditFile(ctx context.Context, req *sandboxv1.EditFileRequest) (*sandboxv1.EditFileResponse, error) {
	var v policy.Violations
	v.SandboxID(req.GetSandboxId())
	v.Path("path", req.GetPath())
	if len(req.GetOldText()) == 0 && !req.GetAllowEmptyOld() {
		v.Add("old_text", "must be given")
	}
	if err := v.Err(); err != nil {
		return nil, err
	}
	return callAgent(ctx, s, req, req.GetAccess(), atMostOnce, func(ctx context.Context, a agentv1.AgentServiceClient, c *agentv1.Confinement, l *agentv1.Limits) (*agentv1.EditFileResponse, error) {
		return a.EditFile(ctx, &agentv1.EditFileRequest{Request: req, Confinement: c, Limits: l})
	})
}
