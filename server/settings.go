package server

import (
	"context"
	"errors"
	"fmt"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentcall"
	"github.com/sandgate/sandgate/server/policy"
)

// settings are the part of a Config that Reload replaces as a whole.
type settings struct {
	policy   *policy.Policy
	limits   Limits
	forAgent *agentv1.Limits
	access   *sandboxv1.AccessPolicy
}

// rules returns the settings in force.
func (s *Server) rules() *settings { return s.current.Load() }

// agentRules returns the part of the settings in force that calls to agents carry.
func (s *Server) agentRules() agentcall.Rules {
	r := s.rules()
	return agentcall.Rules{Policy: r.policy, Limits: r.forAgent}
}

// newPolicy checks what a configuration allows callers, with the provider's help.
func (s *Server) newPolicy(cfg Config) (*policy.Policy, error) {
	checker, _ := s.provider.(providers.OptionsChecker)
	return newPolicy(cfg, s.authorities == nil, checker)
}

// newPolicy takes a nil checker for a provider without options. Without an authority
// the server cannot end TLS.
func newPolicy(cfg Config, noAuthority bool, checker providers.OptionsChecker) (*policy.Policy, error) {
	p, err := policy.New(policy.Config{
		Templates: cfg.Templates, Access: cfg.Access, Secret: cfg.SpecSecret,
		EgressGroups: cfg.EgressGroups, EgressAnyPublic: cfg.EgressAnyPublic,
		Secrets: cfg.Secrets, NoAuthority: noAuthority,
		DefaultTTL: cfg.Limits.DefaultTTL, MaxTTL: cfg.Limits.MaxTTL,
		DefaultIdleTTL: cfg.Limits.DefaultIdleTTL, MaxIdleTTL: cfg.Limits.MaxIdleTTL,
	})
	if err != nil {
		return nil, err
	}
	if checker != nil {
		if err := p.CheckOptions(checker); err != nil {
			return nil, fmt.Errorf("server: %w", err)
		}
	}
	return p, nil
}

// newSettings completes a policy by the provider's default resources.
func newSettings(cfg Config, p *policy.Policy, byDefault providers.Resources) (*settings, error) {
	unlimited := p.LimitTemplates(byDefault)
	if cfg.RequireLimits {
		if err := requireTemplateLimits(unlimited); err != nil {
			return nil, fmt.Errorf("server: %w", err)
		}
	}
	return &settings{policy: p, limits: cfg.Limits, forAgent: cfg.Limits.forAgent(), access: cfg.Access}, nil
}

// Reload replaces Templates, Access, EgressGroups, EgressAnyPublic, Quotas, Webhooks
// and Limits by those of another configuration, except MaxMessageBytes, MaxRequestBytes,
// MaxCreations, MaxConnections, MaxUploads, MaxForwards, MaxEgressConnections and MaxEgressBytesPerSecond, which stay as they were. Running calls go on under the rules with
// which they began; open connections of sandboxes with the network mode PROXY end if
// they are no longer allowed. After an error nothing has changed. Pools are replaced
// first, and only if they differ.
//
// Reload calls inForce, unless it is nil, as soon as the new rules apply to calls: it
// replaces what belongs to them, such as what authenticates callers.
//
// It must not be called twice at a time, nor during Shutdown.
func (s *Server) Reload(ctx context.Context, cfg Config, inForce func()) error {
	old := s.rules()
	cfg.Provider, cfg.SpecSecret, cfg.Secrets, cfg.RequireLimits = s.cfg.Provider, s.cfg.SpecSecret, s.cfg.Secrets, s.cfg.RequireLimits
	cfg, err := cfg.withDefaults()
	if err == nil {
		err = cfg.checkSecrets()
	}
	if err != nil {
		return err
	}
	l := &cfg.Limits
	l.MaxMessageBytes, l.MaxRequestBytes, l.MaxCreations = old.limits.MaxMessageBytes, old.limits.MaxRequestBytes, old.limits.MaxCreations
	l.MaxConnections, l.MaxUploads, l.MaxForwards = old.limits.MaxConnections, old.limits.MaxUploads, old.limits.MaxForwards
	l.MaxEgressConnections, l.MaxEgressBytesPerSecond = old.limits.MaxEgressConnections, old.limits.MaxEgressBytesPerSecond
	p, err := s.newPolicy(cfg)
	if err != nil {
		return err
	}
	now, err := newSettings(cfg, p, s.described.DefaultResources)
	if err != nil {
		return err
	}
	if err := s.keepPools(ctx, now.policy); err != nil {
		return errors.Join(fmt.Errorf("server: %w", err), s.keepPools(context.WithoutCancel(ctx), old.policy))
	}
	s.current.Store(now)
	if inForce != nil {
		inForce()
	}
	s.book.Configure(cfg.Quotas)
	s.streams.Configure(cfg.Quotas)
	s.webhooks.Configure(cfg.Webhooks)
	s.carrier.Refresh(ctx)
	return nil
}

// CountReload counts a changed configuration file, which an error refused.
func (s *Server) CountReload(err error) { s.metrics.Reloaded(err) }
