package serve

import (
	"context"
	"log/slog"
	"time"

	"github.com/spf13/pflag"

	"github.com/sandgate/sandgate/providers/agentsandbox"
)

// agentSandboxFlags are those of the agentsandbox provider, which takes the
// cluster, the namespace and the transport from the kubernetes flags.
type agentSandboxFlags struct {
	idleGrace time.Duration
}

func (a *agentSandboxFlags) add(flags *pflag.FlagSet) {
	flags.DurationVar(&a.idleGrace, "agentsandbox-idle-grace", time.Hour, "how much later than the server the cluster itself ends an idle sandbox, for when no server is left to")
}

func newAgentSandbox(ctx context.Context, f serveFlags, logger *slog.Logger) (*agentsandbox.Provider, error) {
	quietClientGo(logger)
	k := f.kubernetes
	return agentsandbox.New(ctx, agentsandbox.Config{
		Kubeconfig: k.kubeconfig, Context: k.context, Namespace: k.namespace,
		Agent: agentOf(f), IdleGrace: f.agentSandbox.idleGrace,
		Transport: agentsandbox.Transport(k.transport), AgentPort: k.agentPort, Logger: logger,
	})
}
