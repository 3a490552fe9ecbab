package kubernetes

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/kube"
)

// DefaultImage is the image of sandboxes whose template and request name none.
const DefaultImage = "docker.io/library/python:3.12-slim"

// Config configures a Provider.
type Config struct {
	// Kubeconfig, Context and Namespace say where sandboxes live. Empty: what
	// kubectl would take, or in a pod the cluster and namespace around it.
	Kubeconfig, Context, Namespace string
	// Image is the image of sandboxes for which none is named. Default:
	// DefaultImage.
	Image string
	// AgentImage holds the agent at /sandgate-agent. An init container of it
	// copies the agent into every sandbox. Empty: the provider writes the agent
	// itself, through an init container of the sandbox's own image, which then
	// needs sh, cat, chmod, mv, rm and sleep.
	AgentImage string
	// Agent returns the agent's executable for an architecture such as "amd64".
	// It is needed where there is no AgentImage.
	Agent func(arch string) ([]byte, error)
	// NetworkPolicies states that the cluster's network enforces NetworkPolicy,
	// which no API reports.
	NetworkPolicies bool
	// VerifyNetwork is how often one of the servers that share the namespace verifies
	// that, with two small pods that live for some seconds. 0: never.
	VerifyNetwork time.Duration
	// PodPidsLimit is the podPidsLimit of the kubelets, which no API reports. 0:
	// unknown.
	PodPidsLimit int64
	// Transport is how agents are reached. Default: TransportAuto.
	Transport Transport
	// AgentPort is where agents listen. Default: 7778.
	AgentPort int32
	// AgentFrom are the peers that may connect to agents of sandboxes without network
	// that listen: pods as NAMESPACE/LABEL=VALUE,… or ranges of
	// addresses. It must include the servers. Empty: none.
	AgentFrom []string
	// Logger: default slog.Default().
	Logger *slog.Logger

	peers []networkingv1.NetworkPolicyPeer // AgentFrom
}

// DefaultResources returns the limits of a sandbox for which neither template
// nor request states any.
func DefaultResources() providers.Resources {
	return providers.Resources{MemoryBytes: 1 << 30, CPUMillis: 2000, MaxProcesses: 1024, DiskBytes: 4 << 30}
}

// withLimits sets each limit that is not stated to its default.
func withLimits(r providers.Resources) providers.Resources {
	byDefault := DefaultResources()
	if r.MemoryBytes <= 0 {
		r.MemoryBytes = byDefault.MemoryBytes
	}
	if r.CPUMillis <= 0 {
		r.CPUMillis = byDefault.CPUMillis
	}
	if r.DiskBytes <= 0 {
		r.DiskBytes = byDefault.DiskBytes
	}
	return r
}

// Check returns an error if New would refuse c with every cluster, and otherwise what
// checks the options of templates.
func Check(c Config) (providers.OptionsChecker, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Provider{config: c}, nil
}

func (c Config) withDefaults() (Config, error) {
	if c.Image == "" {
		c.Image = DefaultImage
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.AgentImage == "" && c.Agent == nil {
		return c, errors.New("neither an agent image nor the agent's executable is configured")
	}
	if c.PodPidsLimit < 0 {
		return c, fmt.Errorf("pod pids limit %d is negative: %w", c.PodPidsLimit, providers.ErrInvalid)
	}
	return c.withTransport()
}

func (c Config) withTransport() (Config, error) {
	var err error
	if c.Transport, c.AgentPort, err = kube.CheckTransport(c.Transport, c.AgentPort); err != nil {
		return c, err
	}
	c.peers = nil
	for _, from := range c.AgentFrom {
		peer, err := parsePeer(from)
		if err != nil {
			return c, fmt.Errorf("who may connect to agents: %w", err)
		}
		c.peers = append(c.peers, peer)
	}
	if c.Transport == TransportPodIP && c.NetworkPolicies && len(c.peers) == 0 {
		c.Logger.Warn("the network policy of sandboxes without network keeps this server from their agents: allow it with --kubernetes-agent-from")
	}
	return c, nil
}
