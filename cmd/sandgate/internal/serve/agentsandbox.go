package serve

import (
	"context"
	"log/slog"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/agentsandbox"
)

// agentSandboxConfig configures the agentsandbox provider, which takes the cluster,
// the namespace, what its network enforces and the transport from kubernetesConfig.
type agentSandboxConfig struct {
	IdleGrace time.Duration `yaml:"idle_grace" flag:"agentsandbox-idle-grace" help:"how much later than the server the cluster itself deletes an idle sandbox, for when no server is left to do it"`
}

func newAgentSandbox(ctx context.Context, c config, logger *slog.Logger) (providers.Provider, error) {
	return agentsandbox.New(ctx, c.agentSandbox(logger))
}

// checkAgentSandbox returns no default resources: they are those of the cluster's
// templates.
func checkAgentSandbox(c config) (providers.OptionsChecker, providers.Resources, error) {
	options, err := agentsandbox.Check(c.agentSandbox(discard))
	return options, providers.Resources{}, err
}

func (c config) agentSandbox(logger *slog.Logger) agentsandbox.Config {
	k := c.Kubernetes
	return agentsandbox.Config{
		Kubeconfig: k.Kubeconfig, Context: k.Context, Namespace: k.Namespace,
		Agent: agentOf(c), IdleGrace: c.AgentSandbox.IdleGrace, NetworkPolicies: k.NetworkPolicies,
		Transport: agentsandbox.Transport(k.Transport), AgentPort: k.AgentPort, Logger: logger,
	}
}
