package agentcall

import (
	"slices"
	"testing"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Every unary call of sandbox.v1 that agents serve is passed on.
func TestTableHasEveryUnaryCallOfAgents(t *testing.T) {
	var passed []string
	for _, c := range table {
		passed = append(passed, c.method)
	}
	public := sandboxv1.File_sandbox_v1_sandbox_service_proto.Services().ByName("SandboxService").Methods()
	methods := agentv1.File_sandbox_agent_v1_agent_service_proto.Services().ByName("AgentService").Methods()
	for i := range methods.Len() {
		m := methods.Get(i)
		same := public.ByName(m.Name())
		if same == nil || m.IsStreamingClient() || m.IsStreamingServer() {
			continue
		}
		if m.Input() != same.Input() || m.Output() != same.Output() {
			t.Errorf("%s has other messages in AgentService", m.Name())
		}
		n := slices.Index(passed, string(m.Name()))
		if n < 0 {
			t.Errorf("%s is not in table", m.Name())
			continue
		}
		passed = slices.Delete(passed, n, n+1)
	}
	if len(passed) > 0 {
		t.Errorf("table has %q, which agents do not serve", passed)
	}
}
