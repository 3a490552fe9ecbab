package kubernetes

import (
	"context"
	"fmt"

	"github.com/sandgate/sandgate/providers"
)

// protectionNetwork is the protection of sandboxes without network, or with the network
// mode PROXY.
const protectionNetwork = "network"

// Describe reports what the cluster enforces, as far as that is known.
func (p *Provider) Describe(context.Context) (providers.Description, error) {
	return providers.Description{
		Name:         "kubernetes",
		Runtime:      "kubernetes " + p.version,
		Capabilities: []string{"images", providers.CapabilityNetworkProxy}, DefaultResources: DefaultResources(),
		Enforcement: p.Enforcement(),
	}, nil
}

// Enforcement implements providers.Verifier.
func (p *Provider) Enforcement() []providers.Enforcement {
	network := p.network()
	if p.config.Transport.Listens() {
		network.Detail += fmt.Sprintf("; agents listen at port %d of their pods, where the policy allows %s", p.config.AgentPort, p.allowedPeers())
	}
	network.Detail += "; with proxy, " + providers.AddressesNeedProxy
	processes := providers.Enforcement{
		Name: "processes", Enforced: p.config.PodPidsLimit > 0,
		Detail: fmt.Sprintf("the kubelets' podPidsLimit of %d for every sandbox, whatever its own limit", p.config.PodPidsLimit),
	}
	if !processes.Enforced {
		processes.Detail = "Kubernetes has no limit per pod; set the kubelets' podPidsLimit and say so with --kubernetes-pod-pids-limit"
	}
	return []providers.Enforcement{
		{Name: "memory", Enforced: true, Detail: "the container's memory limit"},
		{Name: "cpu", Enforced: true, Detail: "the container's CPU limit"},
		processes,
		{Name: "disk", Enforced: true, Detail: "the kubelet evicts a pod that holds more than its ephemeral storage, within minutes; disk_medium Memory is a hard limit"},
		network,
		{Name: "unprivileged", Enforced: true, Detail: "no root, no capabilities, no new privileges, read-only system, no service account's token"},
		{Name: "seccomp", Enforced: true, Detail: "the container runtime's default profile, or the template's"},
		{Name: "kill_tree", Detail: "a pod gives the agent no cgroup of its own; it sweeps its descendants"},
		{Name: "write_prefixes", Detail: "the node's kernel decides: where it has no Landlock, they bind file calls only, and the message of each command's end reports it"},
	}
}
