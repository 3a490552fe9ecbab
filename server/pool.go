package server

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/policy"
)

// poolsTimeout bounds KeepPools, which deletes unwanted sandboxes and does not
// wait for new ones.
const poolsTimeout = 5 * time.Minute

// keepPools sets the provider's pools to those of the rules' templates, unless it has
// them. Without any it removes those of an earlier server. It must not be called twice
// at a time.
func (s *Server) keepPools(ctx context.Context, rules *policy.Policy) error {
	pools, err := poolsOf(rules)
	if err != nil {
		return err
	}
	if s.pools != nil && reflect.DeepEqual(*s.pools, pools) {
		return nil
	}
	p, ok := s.provider.(providers.Pooler)
	switch {
	case ok:
		ctx, cancel := context.WithTimeout(ctx, poolsTimeout)
		defer cancel()
		s.pools = nil // It is unknown which ones it has after an error.
		if err := p.KeepPools(ctx, pools); err != nil {
			return err
		}
		s.pools = &pools
		return nil
	case len(pools) > 0:
		return fmt.Errorf("template %q has a pool, and the provider %s keeps none: %w",
			pools[0].Template, s.described.Name, providers.ErrUnsupported)
	default:
		return nil
	}
}

// poolsOf returns the pools of the rules' templates.
func poolsOf(rules *policy.Policy) ([]providers.Pool, error) {
	var pools []providers.Pool
	for _, t := range rules.Templates() {
		if t.Pool == 0 {
			continue
		}
		spec, err := rules.Spec("", "", &sandboxv1.CreateSandboxRequest{Template: t.Name})
		if err != nil {
			return nil, fmt.Errorf("pool of template %q: %w", t.Name, err)
		}
		spec.Hash = "" // of no request
		pools = append(pools, providers.Pool{Template: t.Name, Spec: spec, Target: t.Pool})
	}
	return pools, nil
}

// GetPoolStatus implements SandboxService.
func (s *Server) GetPoolStatus(ctx context.Context, req *sandboxv1.GetPoolStatusRequest) (*sandboxv1.GetPoolStatusResponse, error) {
	p, ok := s.provider.(providers.Pooler)
	if !ok {
		return nil, fault.Unsupported("pool", "the provider %s keeps no pools", s.described.Name)
	}
	t, err := s.rules().policy.Template(req.GetTemplate())
	if err != nil {
		return nil, err
	}
	status, err := p.PoolStatus(ctx, t.Name)
	if errors.Is(err, providers.ErrNotFound) {
		return nil, fault.New(sandboxv1.ErrorReason_ERROR_REASON_TEMPLATE_NOT_FOUND,
			"the template %q has no pool", t.Name).With("template", t.Name).WithCause(err)
	}
	if err != nil {
		return nil, err
	}
	own, err := s.claimed(ctx, t.Name)
	if err != nil {
		return nil, err
	}
	return &sandboxv1.GetPoolStatusResponse{
		Available: int32(status.Available), Active: int32(own),
		Total: int32(status.Total - status.Active + own), Target: int32(status.Target),
	}, nil
}

// claimed counts the caller's own active sandboxes from a template's pool. The
// number of other tenants' is not public.
func (s *Server) claimed(ctx context.Context, template string) (int, error) {
	q := providers.Query{Tenant: call.Of(ctx).Principal.Tenant, States: []providers.State{providers.StateActive}, Limit: maxPage}
	n := 0
	for {
		page, err := s.provider.List(ctx, q)
		if err != nil {
			return 0, err
		}
		for _, info := range page.Sandboxes {
			if info.FromPool && info.Spec.Template == template && strings.HasPrefix(info.Spec.ID, call.Of(ctx).Principal.Scope.IDPrefix) {
				n++
			}
		}
		if q.Token = page.Next; q.Token == "" {
			return n, nil
		}
	}
}
