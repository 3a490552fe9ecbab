package server

import (
	"context"
	"fmt"
	"maps"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
)

// UpdateSandbox implements SandboxService.
func (s *Server) UpdateSandbox(ctx context.Context, req *sandboxv1.UpdateSandboxRequest) (*sandboxv1.UpdateSandboxResponse, error) {
	var v violations
	v.sandboxID(req.GetSandboxId())
	v.labels("set_labels", req.GetSetLabels())
	for i, k := range req.GetRemoveLabels() {
		if !labelKeyPattern.MatchString(k) {
			v.add(fmt.Sprintf("remove_labels[%d]", i), "is not a label's key")
		}
	}
	if err := v.err(); err != nil {
		return nil, err
	}
	c := providers.Change{SetLabels: req.GetSetLabels(), RemoveLabels: req.GetRemoveLabels()}
	var err error
	if c.TTL, err = newLifetime("ttl", req.GetTtl(), s.cfg.Limits.MaxTTL); err != nil {
		return nil, err
	}
	if c.IdleTTL, err = newLifetime("idle_ttl", req.GetIdleTtl(), s.cfg.Limits.MaxIdleTTL); err != nil {
		return nil, err
	}
	if req.GetRenew() || len(c.SetLabels)+len(c.RemoveLabels) > 0 || c.TTL != nil || c.IdleTTL != nil {
		c.LastActivity = time.Now()
	}
	b := boxOf(ctx, req.GetSandboxId())
	info, err := s.tunnels.lookup(ctx, b)
	if err != nil {
		return nil, s.explain(b, err)
	}
	labels := maps.Clone(info.Spec.Labels)
	c.ApplyTo(&info)
	if len(info.Spec.Labels) > maxLabels && len(info.Spec.Labels) > len(labels) {
		v.add("set_labels", "would make more than %d labels", maxLabels)
		return nil, v.err()
	}
	if info, err = s.provider.Update(ctx, b.name, c); err != nil {
		return nil, s.explain(b, err)
	}
	s.expired.remove(b.name)
	if t := s.tunnels.peek(b.name); t != nil && t.incarnation == info.Incarnation {
		t.info.Store(&info)
	}
	return &sandboxv1.UpdateSandboxResponse{Sandbox: s.sandbox(info)}, nil
}

func newLifetime(field string, d *durationpb.Duration, limit time.Duration) (*time.Duration, error) {
	if d == nil {
		return nil, nil
	}
	value, err := lifetime(field, d, 0, limit)
	return &value, err
}
