package server

import (
	"context"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// SearchFiles implements SandboxService.
func (s *Server) SearchFiles(ctx context.Context, req *sandboxv1.SearchFilesRequest) (*sandboxv1.SearchFilesResponse, error) {
	var v violations
	v.sandboxID(req.GetSandboxId())
	v.path("path", req.GetPath())
	if req.GetPattern() == "" {
		v.add("pattern", "must be given")
	}
	v.enum("syntax", int32(req.GetSyntax()), sandboxv1.PatternSyntax_name)
	v.notNegative("max_matches", int64(req.GetMaxMatches()))
	v.notNegative("max_file_bytes", req.GetMaxFileBytes())
	v.context("context_before", req.GetContextBefore())
	v.context("context_after", req.GetContextAfter())
	if err := v.err(); err != nil {
		return nil, err
	}
	return ask(ctx, s, req, req.GetAccess(), freely, func(ctx context.Context, a agentv1.AgentServiceClient, c *agentv1.Confinement, l *agentv1.Limits) (*agentv1.SearchFilesResponse, error) {
		return a.SearchFiles(ctx, &agentv1.SearchFilesRequest{Request: req, Confinement: c, Limits: l})
	})
}

// GlobFiles implements SandboxService.
func (s *Server) GlobFiles(ctx context.Context, req *sandboxv1.GlobFilesRequest) (*sandboxv1.GlobFilesResponse, error) {
	var v violations
	v.sandboxID(req.GetSandboxId())
	v.path("path", req.GetPath())
	if req.GetPattern() == "" {
		v.add("pattern", "must be given")
	}
	v.notNegative("max_results", int64(req.GetMaxResults()))
	if err := v.err(); err != nil {
		return nil, err
	}
	return ask(ctx, s, req, req.GetAccess(), freely, func(ctx context.Context, a agentv1.AgentServiceClient, c *agentv1.Confinement, l *agentv1.Limits) (*agentv1.GlobFilesResponse, error) {
		return a.GlobFiles(ctx, &agentv1.GlobFilesRequest{Request: req, Confinement: c, Limits: l})
	})
}

// maxContext is how many lines of context a match can have on each side.
const maxContext = 20

func (v *violations) context(field string, n int32) {
	if n < 0 || n > maxContext {
		v.add(field, "must lie between 0 and %d", maxContext)
	}
}
