package server

import (
	"slices"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/policy"
	"github.com/sandgate/sandgate/server/wire"
)

// sandbox returns a sandbox as callers see it.
func (s *Server) sandbox(info providers.Info) *sandboxv1.Sandbox {
	out := sandboxOf(info)
	out.Isolation.NotEnforced = append(slices.Clone(out.GetIsolation().GetNotEnforced()), s.unboundWrites(info.Spec)...)
	return out
}

// unboundWrites returns an entry of not_enforced if the sandbox's write
// prefixes do not bind its commands.
func (s *Server) unboundWrites(spec providers.Spec) []string {
	policies, err := policy.DecodeAccess(spec.Access)
	if err != nil {
		return nil // Every call of the sandbox fails with this error.
	}
	limited := func(p *sandboxv1.AccessPolicy) bool {
		return len(p.GetWriteAllowPrefixes())+len(p.GetWriteDenyPrefixes()) > 0
	}
	if !limited(s.rules().access) && !slices.ContainsFunc(policies, limited) {
		return nil
	}
	detail := "the provider does not report it"
	for _, e := range s.described.Enforcement {
		switch {
		case e.Name != writePrefixes:
		case e.Enforced:
			return nil
		default:
			detail = e.Detail
		}
	}
	return []string{writePrefixes + ": " + detail}
}

// writePrefixes is the name of the provider's Enforcement of write prefixes for
// commands.
const writePrefixes = "write_prefixes"

// egressRules returns the sandbox's own rules. The template's are not public.
func egressRules(spec providers.Spec) []*sandboxv1.EgressRule {
	rules, err := policy.EgressRules(spec)
	if err != nil {
		return nil // Every connection of the sandbox fails with this error.
	}
	return rules
}

// sandboxOf returns the part of a Sandbox that the provider knows.
func sandboxOf(info providers.Info) *sandboxv1.Sandbox {
	spec := info.Spec
	env := make(map[string]string, len(spec.Env))
	for k := range spec.Env {
		env[k] = ""
	}
	out := &sandboxv1.Sandbox{
		SandboxId: spec.ID, Incarnation: info.Incarnation,
		State: wire.State(info.State), StateMessage: fault.StateMessage(info),
		CreateTime: wire.Timestamp(info.CreateTime), LastActivityTime: wire.Timestamp(info.LastActivity),
		ExpireTime: wire.Timestamp(info.ExpireTime()), Ttl: wire.Duration(spec.TTL), IdleTtl: wire.Duration(spec.IdleTTL),
		Labels: spec.Labels, Template: spec.Template, FromPool: info.FromPool, SubstrateName: info.Name, Transport: info.Transport, ImageDigest: info.ImageDigest,
		Spec: &sandboxv1.SandboxSpec{
			Image: spec.Image, Env: env, WorkingDirectory: spec.WorkingDirectory, Command: spec.Command,
			Network:   &sandboxv1.Network{Mode: wire.Network(spec.Network), Allow: egressRules(spec)},
			Resources: wire.Resources(spec.Resources),
		},
		Isolation: &sandboxv1.Isolation{
			Runtime: info.Runtime, Network: wire.Network(spec.Network), Unprivileged: info.Unprivileged,
			ReadOnlySystem: info.ReadOnlySystem, NotEnforced: info.NotEnforced,
		},
	}
	// The template's own policy is not public.
	if policies, err := policy.DecodeAccess(spec.Access); err == nil && len(policies) == 2 {
		out.Spec.Access = policies[1]
	}
	return out
}
