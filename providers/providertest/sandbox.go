package providertest

import (
	"context"
	"testing"

	"github.com/sandgate/sandgate/conformance"
	"github.com/sandgate/sandgate/conformance/goprogram/build"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
)

// Sandbox is one sandbox as a case uses it.
type Sandbox = conformance.Sandbox

func sandboxCaseNames() map[string]bool {
	names := map[string]bool{}
	for _, c := range conformance.SandboxCases() {
		names[c.Name] = true
	}
	return names
}

func runSandboxCases(t *testing.T, h Harness, make func(*testing.T, func(*providers.Spec)) Sandbox) {
	t.Helper()
	shared := make(t, func(*providers.Spec) {})
	for _, c := range conformance.SandboxCases() {
		if !h.picks(c.Name) || excepted(t, h.Except, c.Name) {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), caseTimeout)
			defer cancel()
			s := shared
			if c.Limits != nil {
				s = make(t, func(spec *providers.Spec) { limit(&spec.Resources, c.Limits) })
			}
			c.Run(ctx, t, s)
		})
	}
}

// limit sets what a case asks for and leaves the rest as it is.
func limit(have *providers.Resources, want *sandboxv1.Resources) {
	if n := want.GetMemoryBytes(); n > 0 {
		have.MemoryBytes = n
	}
	if n := want.GetMaxProcesses(); n > 0 {
		have.MaxProcesses = n
	}
	if n := want.GetDiskBytes(); n > 0 {
		have.DiskBytes = n
	}
}

// newSandbox makes one directly on a provider.
func newSandbox(t *testing.T, h Harness, p providers.Provider, change func(*providers.Spec)) Sandbox {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), caseTimeout)
	defer cancel()
	b := &box{h: h, p: p}
	name := name(t)
	spec := b.spec(name)
	change(&spec)
	b.create(ctx, t, name, spec)
	conn := connect(t, p, name)
	t.Cleanup(func() { _ = conn.Close() })
	return Sandbox{Client: agentv1.NewAgentServiceClient(conn), ID: name, GoProgram: build.GoProgram(t)}
}

// Shell runs a script in a provider's sandbox and returns what it wrote to
// standard output, for a provider's own tests.
func Shell(t *testing.T, p providers.Provider, name, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), caseTimeout)
	defer cancel()
	conn := connect(t, p, name)
	defer func() { _ = conn.Close() }()
	s := Sandbox{Client: agentv1.NewAgentServiceClient(conn), ID: name}
	return s.Shell(ctx, t, script)
}
