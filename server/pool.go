package server

import (
	"context"
	"errors"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
)

// GetPoolStatus implements SandboxService.
func (s *Server) GetPoolStatus(ctx context.Context, req *sandboxv1.GetPoolStatusRequest) (*sandboxv1.GetPoolStatusResponse, error) {
	p, ok := s.provider.(providers.Pooler)
	if !ok {
		return nil, unsupported("pool", "the provider %s keeps no pools", s.described.Name)
	}
	t, err := s.template(req.GetTemplate())
	if err != nil {
		return nil, err
	}
	status, err := p.PoolStatus(ctx, t.Name)
	if errors.Is(err, providers.ErrNotFound) {
		return nil, faultf(sandboxv1.ErrorReason_ERROR_REASON_TEMPLATE_NOT_FOUND,
			"the template %q has no pool", t.Name).with("template", t.Name).because(err)
	}
	if err != nil {
		return nil, err
	}
	return &sandboxv1.GetPoolStatusResponse{
		Available: int32(status.Available), Active: int32(status.Active),
		Total: int32(status.Total), Target: int32(status.Target),
	}, nil
}
