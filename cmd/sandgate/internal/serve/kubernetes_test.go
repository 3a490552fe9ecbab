package serve

import (
	"slices"
	"testing"

	"github.com/spf13/pflag"
)

// TestS5_5_TransportConfig: the transport to the agents and their port come from flags or
// the file, and flags go first.
func TestS5_5_TransportConfig(t *testing.T) {
	var f serveFlags
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	f.kubernetes.add(flags)
	if f.kubernetes.transport != "auto" || f.kubernetes.agentPort != 7778 || len(f.kubernetes.agentFrom) != 0 {
		t.Errorf("by default: %+v", f.kubernetes)
	}
	c, err := readConfig(writeFile(t, "c.yaml", `
kubernetes: {transport: pod-ip, agent_port: 8888, agent_from: ["sandgate/app=server,tier in (a,b)", 10.0.0.0/8]}
`))
	if err != nil {
		t.Fatal(err)
	}
	c.overrule(&f, func(string) bool { return false })
	if f.kubernetes.transport != "pod-ip" || f.kubernetes.agentPort != 8888 ||
		!slices.Equal(f.kubernetes.agentFrom, []string{"sandgate/app=server,tier in (a,b)", "10.0.0.0/8"}) {
		t.Errorf("from the file: %+v", f.kubernetes)
	}
	err = flags.Parse([]string{"--kubernetes-transport=exec", "--kubernetes-agent-port=9999", "--kubernetes-agent-from=a/b=c,d=e", "--kubernetes-agent-from=::/0"})
	if err != nil {
		t.Fatal(err)
	}
	c.overrule(&f, flags.Changed)
	if f.kubernetes.transport != "exec" || f.kubernetes.agentPort != 9999 || !slices.Equal(f.kubernetes.agentFrom, []string{"a/b=c,d=e", "::/0"}) {
		t.Errorf("from flags: %+v", f.kubernetes)
	}
}
