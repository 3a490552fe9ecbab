package serve

import (
	"slices"
	"testing"
)

// TestS5_5_TransportConfig: the transport to the agents and their port come from the
// file or from flags, which win.
func TestS5_5_TransportConfig(t *testing.T) {
	c := configOf(t, "")
	if c.Kubernetes.Transport != "auto" || c.Kubernetes.AgentPort != 7778 || len(c.Kubernetes.AgentFrom) != 0 {
		t.Errorf("by default: %+v", c.Kubernetes)
	}
	const file = `
kubernetes: {transport: pod-ip, agent_port: 8888, agent_from: ["sandgate/app=server,tier in (a,b)", 10.0.0.0/8]}
`
	c = configOf(t, file)
	if c.Kubernetes.Transport != "pod-ip" || c.Kubernetes.AgentPort != 8888 ||
		!slices.Equal(c.Kubernetes.AgentFrom, []string{"sandgate/app=server,tier in (a,b)", "10.0.0.0/8"}) {
		t.Errorf("from the file: %+v", c.Kubernetes)
	}
	c = configOf(t, file, "--kubernetes-transport=exec", "--kubernetes-agent-port=9999", "--kubernetes-agent-from=a/b=c,d=e", "--kubernetes-agent-from=::/0")
	if c.Kubernetes.Transport != "exec" || c.Kubernetes.AgentPort != 9999 || !slices.Equal(c.Kubernetes.AgentFrom, []string{"a/b=c,d=e", "::/0"}) {
		t.Errorf("from flags: %+v", c.Kubernetes)
	}
}
