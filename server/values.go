package server

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
)

// states holds both sides of a sandbox's state.
var states = map[providers.State]sandboxv1.SandboxState{
	providers.StateUnknown:   sandboxv1.SandboxState_SANDBOX_STATE_UNSPECIFIED,
	providers.StateCreating:  sandboxv1.SandboxState_SANDBOX_STATE_CREATING,
	providers.StateActive:    sandboxv1.SandboxState_SANDBOX_STATE_ACTIVE,
	providers.StateSuspended: sandboxv1.SandboxState_SANDBOX_STATE_SUSPENDED,
	providers.StateDeleting:  sandboxv1.SandboxState_SANDBOX_STATE_DELETING,
	providers.StateFailed:    sandboxv1.SandboxState_SANDBOX_STATE_FAILED,
}

// stateName is a state as error metadata carries it, such as "SUSPENDED".
func stateName(s providers.State) string {
	return strings.TrimPrefix(states[s].String(), "SANDBOX_STATE_")
}

func stateFrom(s sandboxv1.SandboxState) (providers.State, bool) {
	for state, wire := range states {
		if wire == s && state != providers.StateUnknown {
			return state, true
		}
	}
	return providers.StateUnknown, false
}

var networks = map[providers.NetworkMode]sandboxv1.NetworkMode{
	providers.NetworkUnset: sandboxv1.NetworkMode_NETWORK_MODE_UNSPECIFIED,
	providers.NetworkNone:  sandboxv1.NetworkMode_NETWORK_MODE_NONE,
	providers.NetworkProxy: sandboxv1.NetworkMode_NETWORK_MODE_PROXY,
	providers.NetworkFull:  sandboxv1.NetworkMode_NETWORK_MODE_FULL,
}

func networkFrom(m sandboxv1.NetworkMode) providers.NetworkMode {
	for mode, wire := range networks {
		if wire == m {
			return mode
		}
	}
	return providers.NetworkUnset
}

// sandbox is a sandbox as callers see it.
func (s *Server) sandbox(info providers.Info) *sandboxv1.Sandbox {
	out := sandbox(info)
	out.Isolation.NotEnforced = append(slices.Clone(out.GetIsolation().GetNotEnforced()), s.unboundWrites(info.Spec)...)
	return out
}

// unboundWrites returns an entry of not_enforced for a sandbox whose write
// prefixes do not bind its commands.
func (s *Server) unboundWrites(spec providers.Spec) []string {
	policies, err := decodeAccess(spec.Access)
	if err != nil {
		return nil // Every call of the sandbox fails with this error.
	}
	limited := func(p *sandboxv1.AccessPolicy) bool {
		return len(p.GetWriteAllowPrefixes())+len(p.GetWriteDenyPrefixes()) > 0
	}
	if !limited(s.cfg.Access) && !slices.ContainsFunc(policies, limited) {
		return nil
	}
	detail := "the provider says nothing about it"
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

// writePrefixes is the name under which a provider describes whether access
// policies bind commands.
const writePrefixes = "write_prefixes"

// sandbox is what of it the provider knows.
func sandbox(info providers.Info) *sandboxv1.Sandbox {
	spec := info.Spec
	env := make(map[string]string, len(spec.Env))
	for k := range spec.Env {
		env[k] = ""
	}
	out := &sandboxv1.Sandbox{
		SandboxId: spec.ID, Incarnation: info.Incarnation,
		State: states[info.State], StateMessage: stateMessage(info),
		CreateTime: timestamp(info.CreateTime), LastActivityTime: timestamp(info.LastActivity),
		ExpireTime: timestamp(info.ExpireTime()), Ttl: duration(spec.TTL), IdleTtl: duration(spec.IdleTTL),
		Labels: spec.Labels, Template: spec.Template, FromPool: info.FromPool, SubstrateName: info.Name,
		Spec: &sandboxv1.SandboxSpec{
			Image: spec.Image, Env: env, WorkingDirectory: spec.WorkingDirectory, Command: spec.Command,
			Network: &sandboxv1.Network{Mode: networks[spec.Network]},
			Resources: &sandboxv1.Resources{
				MemoryBytes: spec.Resources.MemoryBytes, CpuMillis: spec.Resources.CPUMillis,
				MaxProcesses: spec.Resources.MaxProcesses, DiskBytes: spec.Resources.DiskBytes,
			},
		},
		Isolation: &sandboxv1.Isolation{
			Runtime: info.Runtime, Network: networks[spec.Network], Unprivileged: info.Unprivileged,
			ReadOnlySystem: info.ReadOnlySystem, NotEnforced: info.NotEnforced,
		},
	}
	// The template's own policy is the operator's business.
	if policies, err := decodeAccess(spec.Access); err == nil && len(policies) == 2 {
		out.Spec.Access = policies[1]
	}
	return out
}

// timestamp leaves the zero time unset.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// duration leaves 0, which means none, unset.
func duration(d time.Duration) *durationpb.Duration {
	if d <= 0 {
		return nil
	}
	return durationpb.New(d)
}
