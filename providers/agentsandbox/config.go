package agentsandbox

import (
	"errors"
	"log/slog"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
)

// Config configures a Provider.
type Config struct {
	// Kubeconfig, Context and Namespace say where sandboxes live. Empty: what
	// kubectl would take, or in a pod the cluster and namespace around it.
	Kubeconfig, Context, Namespace string
	// Agent returns the agent's executable for an architecture such as "amd64".
	// Required.
	Agent func(arch string) ([]byte, error)
	// IdleGrace is how much later than its idleness would end a sandbox the
	// cluster itself does so, for when no server is left to. Default: 1 h.
	IdleGrace time.Duration
	// NetworkPolicies states that the cluster's network enforces NetworkPolicy,
	// which no API reports.
	NetworkPolicies bool
	// Transport is how agents are reached. Default: TransportAuto.
	Transport Transport
	// AgentPort is where agents listen. Default: 7778.
	AgentPort int32
	// Logger: default slog.Default().
	Logger *slog.Logger
}

// Check returns an error if New would refuse c with every cluster, and otherwise what
// checks the options of templates.
func Check(c Config) (providers.OptionsChecker, error) {
	_, err := c.withDefaults()
	return (*Provider)(nil), err
}

func (c Config) withDefaults() (Config, error) {
	if c.Agent == nil {
		return c, errors.New("no agent executable is configured")
	}
	if c.IdleGrace <= 0 {
		c.IdleGrace = time.Hour
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	var err error
	c.Transport, c.AgentPort, err = kube.CheckTransport(c.Transport, c.AgentPort)
	return c, err
}
