package server

import (
	"context"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/policy"
)

// SearchFiles implements SandboxService.
func (s *Server) SearchFiles(ctx context.Context, req *sandboxv1.SearchFilesRequest) (*sandboxv1.SearchFilesResponse, error) {
	var v policy.Violations
	v.SandboxID(req.GetSandboxId())
	v.Path("path", req.GetPath())
	if req.GetPattern() == "" {
		v.Add("pattern", "must be given")
	}
	v.Enum("syntax", int32(req.GetSyntax()), sandboxv1.PatternSyntax_name)
	v.NotNegative("max_matches", int64(req.GetMaxMatches()))
	v.NotNegative("max_file_bytes", req.GetMaxFileBytes())
	v.ContextLines("context_before", req.GetContextBefore())
	v.ContextLines("context_after", req.GetContextAfter())
	if err := v.Err(); err != nil {
		return nil, err
	}
	return callAgent(ctx, s, req, req.GetAccess(), idempotent, func(ctx context.Context, a agentv1.AgentServiceClient, c *agentv1.Confinement, l *agentv1.Limits) (*agentv1.SearchFilesResponse, error) {
		return a.SearchFiles(ctx, &agentv1.SearchFilesRequest{Request: req, Confinement: c, Limits: l})
	})
}

// GlobFiles implements SandboxService.
func (s *Server) GlobFiles(ctx context.Context, req *sandboxv1.GlobFilesRequest) (*sandboxv1.GlobFilesResponse, error) {
	var v policy.Violations
	v.SandboxID(req.GetSandboxId())
	v.Path("path", req.GetPath())
	if req.GetPattern() == "" {
		v.Add("pattern", "must be given")
	}
	v.NotNegative("max_results", int64(req.GetMaxResults()))
	if err := v.Err(); err != nil {
		return nil, err
	}
	return callAgent(ctx, s, req, req.GetAccess(), idempotent, func(ctx context.Context, a agentv1.AgentServiceClient, c *agentv1.Confinement, l *agentv1.Limits) (*agentv1.GlobFilesResponse, error) {
		return a.GlobFiles(ctx, &agentv1.GlobFilesRequest{Request: req, Confinement: c, Limits: l})
	})
}
