package serve

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/sandgate/sandgate/cmd/sandgate/agentbin"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/kubernetes"
)

// kubernetesConfig configures both providers on Kubernetes.
type kubernetesConfig struct {
	Kubeconfig      string        `yaml:"kubeconfig" flag:"kubernetes-kubeconfig" help:"kubeconfig file of the cluster (default $KUBECONFIG, ~/.kube/config, or in a pod the cluster around it)"`
	Context         string        `yaml:"context" flag:"kubernetes-context" help:"context of the kubeconfig (default its current one)"`
	Namespace       string        `yaml:"namespace" flag:"kubernetes-namespace" help:"namespace of sandboxes (default the context's, or the pod's)"`
	Image           string        `yaml:"image" flag:"kubernetes-image" help:"image of sandboxes whose template and request name none"`
	AgentImage      string        `yaml:"agent_image" flag:"kubernetes-agent-image" help:"image with the agent at /sandgate-agent, to bring it into sandboxes; without it images need a shell"`
	NetworkPolicies bool          `yaml:"network_policies" flag:"kubernetes-network-policies" help:"state that the cluster's network enforces NetworkPolicy"`
	VerifyNetwork   time.Duration `yaml:"verify_network" flag:"kubernetes-verify-network" help:"how often one of the servers verifies that, with two small pods that live for a minute or so; what it finds counts more than the statement; 0: never" min:"0s"`
	PodPidsLimit    int64         `yaml:"pod_pids_limit" flag:"kubernetes-pod-pids-limit" help:"state the kubelets' podPidsLimit (default unknown)" min:"0"`
	Transport       string        `yaml:"transport" flag:"kubernetes-transport" help:"how agents are reached: pod-ip, at their pods' addresses; exec, through the API server; auto, by pod-ip in a cluster where it works, else by exec" enum:"auto pod-ip exec"`
	AgentPort       int32         `yaml:"agent_port" flag:"kubernetes-agent-port" help:"port where agents listen, unless they are reached by exec" min:"1024" max:"65535"`
	AgentFrom       []string      `yaml:"agent_from" flag:"kubernetes-agent-from" help:"sources that may connect to that port of sandboxes without network, the servers: NAMESPACE/LABEL=VALUE,… or a CIDR; repeatable (default none)"`
}

func newKubernetes(ctx context.Context, c config, logger *slog.Logger) (providers.Provider, error) {
	return kubernetes.New(ctx, c.kubernetes(logger))
}

func checkKubernetes(c config) (providers.OptionsChecker, providers.Resources, error) {
	options, err := kubernetes.Check(c.kubernetes(discard))
	return options, kubernetes.DefaultResources(), err
}

func (c config) kubernetes(logger *slog.Logger) kubernetes.Config {
	k := c.Kubernetes
	return kubernetes.Config{
		Kubeconfig: k.Kubeconfig, Context: k.Context, Namespace: k.Namespace, Image: k.Image, AgentImage: k.AgentImage,
		Agent: agentOf(c), NetworkPolicies: k.NetworkPolicies, VerifyNetwork: k.VerifyNetwork, PodPidsLimit: k.PodPidsLimit,
		Transport: kubernetes.Transport(k.Transport), AgentPort: k.AgentPort, AgentFrom: k.AgentFrom, Logger: logger,
	}
}

// agentOf returns the source of the agent's executables.
func agentOf(c config) func(arch string) ([]byte, error) {
	if c.Agent == "" {
		return agentbin.Read
	}
	return func(string) ([]byte, error) { return os.ReadFile(c.Agent) }
}
