package kubernetes

import (
	"strings"
	"testing"

	"k8s.io/client-go/dynamic"
)

// TestChartPodIP installs the chart with each explicit transport; the default is
// TestChart's.
func TestChartPodIP(t *testing.T) {
	t.Parallel()
	client, config := clientset(t)
	t.Run("S1-32 S5-5 kubernetes", func(t *testing.T) {
		t.Parallel()
		c := install(t, client, config, "kubernetes",
			"--set", "extraArgs={--kubernetes-image=docker.io/sandgate/python:test},transport=pod-ip,agentPort=8765,agentFrom={0.0.0.0/0}",
			"--set-json", `config={"templates":[{"name":"default","resources":{"memory_bytes":1073741824,"cpu_millis":1000,"disk_bytes":536870912},"max_resources":{"max_processes":4096},"provider_options":{"disk_medium":"Memory"}}]}`)
		if out := c.run(t, binary("sandgate"), "run", "--", "sh", "-c", "echo out; id -u; env"); len(out) < 9 || out[:9] != "out\n1000\n" {
			t.Errorf("%q", out)
		}
		c.reaches(t, "pod-ip")
		c.conformance(t, "0.07")
	})
	t.Run("S5-5 S5-15 agentsandbox by exec", func(t *testing.T) {
		t.Parallel()
		needAgentSandbox(t, client)
		c := install(t, client, config, "agentsandbox", "--set", "transport=exec",
			"--set-json", `config={"templates":[{"name":"default","provider_options":{"sandbox_template":"box"}}]}`)
		d, err := dynamic.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		r := &asHarness{t: t, dynamic: d, namespace: c.sandboxes}
		r.template("box", restricted(pythonImage()), map[string]any{"networkPolicyManagement": "Unmanaged"})
		if out := c.run(t, binary("sandgate"), "run", "--", "echo", "out"); out != "out\n" {
			t.Errorf("%q", out)
		}
		c.reaches(t, "exec")
		if may(t, c.asServer(t, config), c.sandboxes, "get", "", "secrets") {
			t.Error("it may read secrets")
		}
		c.conformance(t, "0.04")
	})
}

// reaches checks the transport that the server reports for a new sandbox.
func (c installed) reaches(t *testing.T, by string) {
	t.Helper()
	id := strings.TrimSpace(c.run(t, binary("sandgate"), "create"))
	if out := c.run(t, binary("sandgate"), "info", id, "--output", "json"); !strings.Contains(strings.ReplaceAll(out, " ", ""), `"transport":"`+by+`"`) {
		t.Errorf("it is not reached by %s: %s", by, out)
	}
	c.run(t, binary("sandgate"), "rm", id)
}
