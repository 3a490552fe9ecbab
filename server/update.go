package server

import (
	"context"
	"fmt"
	"maps"
	"time"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentcall"
	"github.com/sandgate/sandgate/server/policy"
)

// UpdateSandbox implements SandboxService.
func (s *Server) UpdateSandbox(ctx context.Context, req *sandboxv1.UpdateSandboxRequest) (*sandboxv1.UpdateSandboxResponse, error) {
	var v policy.Violations
	v.SandboxID(req.GetSandboxId())
	v.Labels("set_labels", req.GetSetLabels())
	for i, k := range req.GetRemoveLabels() {
		v.LabelKey(fmt.Sprintf("remove_labels[%d]", i), k)
	}
	if err := v.Err(); err != nil {
		return nil, err
	}
	c := providers.Change{SetLabels: req.GetSetLabels(), RemoveLabels: req.GetRemoveLabels()}
	var err error
	if c.TTL, err = s.rules().policy.NewTTL(req.GetTtl()); err != nil {
		return nil, err
	}
	if c.IdleTTL, err = s.rules().policy.NewIdleTTL(req.GetIdleTtl()); err != nil {
		return nil, err
	}
	key := agentcall.KeyOf(ctx, req.GetSandboxId())
	info, err := s.agents.Lookup(ctx, key)
	if err != nil {
		return nil, s.router.NotFoundReason(key, err)
	}
	if c.Egress, err = s.rules().policy.NewEgress(info.Spec, req.GetNetwork()); err != nil {
		return nil, err
	}
	if req.GetRenew() || len(c.SetLabels)+len(c.RemoveLabels) > 0 || c.TTL != nil || c.IdleTTL != nil || c.Egress != nil {
		c.LastActivity = time.Now()
	}
	labels := maps.Clone(info.Spec.Labels)
	c.ApplyTo(&info)
	if len(info.Spec.Labels) > policy.MaxLabels && len(info.Spec.Labels) > len(labels) {
		v.Add("set_labels", "would make more than %d labels", policy.MaxLabels)
		return nil, v.Err()
	}
	if info, err = s.provider.Update(ctx, key.Name, c); err != nil {
		return nil, s.router.NotFoundReason(key, err)
	}
	s.expired.Remove(key.Name)
	if conn := s.agents.Peek(key.Name); conn != nil && conn.Incarnation == info.Incarnation {
		conn.SetInfo(info)
	}
	if c.Egress != nil {
		s.carrier.Update(ctx, info)
	}
	return &sandboxv1.UpdateSandboxResponse{Sandbox: s.sandbox(info)}, nil
}
