package server

import (
	"context"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/policy"
)

// GetUpload implements SandboxService.
func (s *Server) GetUpload(ctx context.Context, req *sandboxv1.GetUploadRequest) (*sandboxv1.GetUploadResponse, error) {
	var v policy.Violations
	v.SandboxID(req.GetSandboxId())
	v.ID("upload_id", req.GetUploadId(), true)
	if err := v.Err(); err != nil {
		return nil, err
	}
	return callAgent(ctx, s, req, nil, idempotent, func(ctx context.Context, a agentv1.AgentServiceClient, c *agentv1.Confinement, l *agentv1.Limits) (*agentv1.GetUploadResponse, error) {
		return a.GetUpload(ctx, &agentv1.GetUploadRequest{Request: req, Confinement: c, Limits: l})
	})
}

// StatFile implements SandboxService.
func (s *Server) StatFile(ctx context.Context, req *sandboxv1.StatFileRequest) (*sandboxv1.StatFileResponse, error) {
	var v policy.Violations
	v.SandboxID(req.GetSandboxId())
	v.Path("path", req.GetPath())
	if err := v.Err(); err != nil {
		return nil, err
	}
	return callAgent(ctx, s, req, req.GetAccess(), idempotent, func(ctx context.Context, a agentv1.AgentServiceClient, c *agentv1.Confinement, l *agentv1.Limits) (*agentv1.StatFileResponse, error) {
		return a.StatFile(ctx, &agentv1.StatFileRequest{Request: req, Confinement: c, Limits: l})
	})
}

// ListDirectory implements SandboxService.
func (s *Server) ListDirectory(ctx context.Context, req *sandboxv1.ListDirectoryRequest) (*sandboxv1.ListDirectoryResponse, error) {
	var v policy.Violations
	v.SandboxID(req.GetSandboxId())
	v.Path("path", req.GetPath())
	v.NotNegative("page_size", int64(req.GetPageSize()))
	if err := v.Err(); err != nil {
		return nil, err
	}
	return callAgent(ctx, s, req, req.GetAccess(), idempotent, func(ctx context.Context, a agentv1.AgentServiceClient, c *agentv1.Confinement, l *agentv1.Limits) (*agentv1.ListDirectoryResponse, error) {
		return a.ListDirectory(ctx, &agentv1.ListDirectoryRequest{Request: req, Confinement: c, Limits: l})
	})
}

// ReadLines implements SandboxService.
func (s *Server) ReadLines(ctx context.Context, req *sandboxv1.ReadLinesRequest) (*sandboxv1.ReadLinesResponse, error) {
	var v policy.Violations
	v.SandboxID(req.GetSandboxId())
	v.Path("path", req.GetPath())
	v.NotNegative("offset", req.GetOffset())
	v.NotNegative("limit", req.GetLimit())
	v.NotNegative("max_bytes", req.GetMaxBytes())
	if err := v.Err(); err != nil {
		return nil, err
	}
	return callAgent(ctx, s, req, req.GetAccess(), idempotent, func(ctx context.Context, a agentv1.AgentServiceClient, c *agentv1.Confinement, l *agentv1.Limits) (*agentv1.ReadLinesResponse, error) {
		return a.ReadLines(ctx, &agentv1.ReadLinesRequest{Request: req, Confinement: c, Limits: l})
	})
}
