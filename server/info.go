package server

import (
	"context"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/policy"
	"github.com/sandgate/sandgate/server/wire"
)

// agentCapabilities are those of every agent of the present protocol. An
// agent's own list is not shown: it may belong to another tenant.
var agentCapabilities = []string{"attach", "forward", "stdin", "terminal"}

// GetServerInfo implements SandboxService.
func (s *Server) GetServerInfo(ctx context.Context, _ *sandboxv1.GetServerInfoRequest) (*sandboxv1.GetServerInfoResponse, error) {
	p := call.Of(ctx).Principal
	resp := &sandboxv1.GetServerInfoResponse{
		Version: s.cfg.Version, Provider: s.described.Name,
		Capabilities: s.capabilities(), Limits: s.rules().limits.forCallers(),
		Principal: &sandboxv1.Principal{Name: p.Name, Tenant: p.Tenant, Role: p.Role.String()},
		Quotas:    s.quotas(ctx),
	}
	for _, t := range s.rules().policy.Templates() {
		if policy.TemplateInScope(p.Scope, t.Name) {
			resp.Templates = append(resp.Templates, t.Name)
		}
	}
	for _, e := range s.enforcement() {
		resp.Enforcement = append(resp.Enforcement, &sandboxv1.Enforcement{Name: e.Name, Enforced: e.Enforced, Detail: e.Detail})
	}
	if s.cfg.Preview != nil {
		resp.Limits.MaxUrlTtl = durationpb.New(s.cfg.Preview.MaxTTL())
	}
	if s.cfg.Secrets != nil {
		for _, e := range s.cfg.Secrets.List(p.Tenant) {
			resp.Secrets = append(resp.Secrets, &sandboxv1.SecretInfo{Name: e.Name, Source: e.Source(), Hosts: e.Hosts})
		}
	}
	return resp, nil
}

func (s *Server) capabilities() []string {
	list := append(slices.Clone(s.described.Capabilities), agentCapabilities...)
	if _, ok := s.provider.(providers.Suspender); ok {
		list = append(list, "suspend")
	}
	if _, ok := s.provider.(providers.Pooler); ok {
		list = append(list, "pool")
	}
	if s.cfg.Preview != nil {
		list = append(list, "url")
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func (l Limits) forCallers() *sandboxv1.ServerLimits {
	return &sandboxv1.ServerLimits{
		MaxMessageBytes: int64(l.MaxMessageBytes), OutputLogBytes: l.OutputLogBytes,
		DefaultTimeout: wire.Duration(l.DefaultTimeout), MaxTimeout: wire.Duration(l.MaxTimeout),
		EndRetention:   durationpb.New(l.EndRetention),
		DefaultIdleTtl: wire.Duration(l.DefaultIdleTTL), DefaultTtl: wire.Duration(l.DefaultTTL),
	}
}
