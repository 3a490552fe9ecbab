package kubernetes

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// install puts the server into the cluster with Helm, as an operator does, and
// returns when it is ready.
func install(t *testing.T, client *kubernetes.Clientset, config *rest.Config, provider string, more ...string) installed {
	t.Helper()
	i := prepare(t, client, config)
	colon := strings.LastIndexByte(i.image, ':')
	values, err := yaml.Marshal(map[string]any{
		"provider": provider,
		"image":    map[string]any{"repository": i.image[:colon], "tag": i.image[colon+1:], "pullPolicy": "Never"},
		"tls":      map[string]any{"secretName": "sandgate-tls"},
		"auth":     map[string]any{"tokensSecretName": "sandgate-tokens"},
		"replicas": 1, "hostNetwork": true, "containerPort": i.port, "preStopSleepSeconds": 1,
		"agentFrom": []string{"0.0.0.0/0"},
		"resources": map[string]any{"requests": map[string]any{"cpu": "10m"}},
		"extraEnv":  i.api,
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(path, values, 0o600); err != nil {
		t.Fatal(err)
	}
	helm(t, append([]string{
		"install", i.name, "../../deploy/helm/sandgate", "--namespace", i.namespace,
		"--values", path, "--wait", "--timeout", "90s",
	}, more...)...)
	t.Cleanup(func() { helm(t, "uninstall", i.name, "--namespace", i.namespace, "--wait") })
	return i
}

func helm(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*waitTimeout)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "helm", args...).CombinedOutput(); err != nil {
		t.Fatalf("helm %q: %v\n%s", args, err, out)
	}
}

// TestChart installs the chart with each provider. The server has no more rights
// than its own account, and a caller no more than address, CA and token.
func TestChart(t *testing.T) {
	t.Parallel()
	client, config := clientset(t)
	t.Run("S3-1 S5-2 kubernetes", func(t *testing.T) {
		t.Parallel()
		c := install(t, client, config, "kubernetes", "--set", "extraArgs={--kubernetes-image=docker.io/sandgate/python:test}",
			"--set-json", `config={"templates":[{"name":"default","resources":{"memory_bytes":1073741824,"cpu_millis":1000,"disk_bytes":536870912},"max_resources":{"max_processes":4096},"provider_options":{"disk_medium":"Memory"}}]}`)
		t.Run("S1-8 S1-10 S4-3 S5-4 a command from outside", func(t *testing.T) {
			if out := c.run(t, binary("sandgate"), "run", "--", "sh", "-c", "echo out; id -u"); out != "out\n1000\n" {
				t.Errorf("%q", out)
			}
		})
		t.Run("S4-3 S5-4 C7 a command through kubectl port-forward", c.throughTunnel)
		t.Run("S1-8 S4-3 S5-4 a command through a gateway", c.throughGateway)
		t.Run("S1-32 S5-5 in the cluster agents are reached at their pods' addresses", func(t *testing.T) { c.reaches(t, "pod-ip") })
		t.Run("S1-7 S3-2 S5-3 S5-30 a readable name in the namespace", func(t *testing.T) {
			id := strings.TrimSpace(c.run(t, binary("sandgate"), "create"))
			pods, err := client.CoreV1().Pods(c.sandboxes).List(limit(t), meta.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=sandgate,sandgate.dev/kind=sandbox"})
			if err != nil || len(pods.Items) != 1 || !strings.Contains(pods.Items[0].Name, strings.TrimPrefix(id, "sb-")) {
				t.Errorf("pods of %s: %v, %v", id, pods.Items, err)
			}
			c.run(t, binary("sandgate"), "rm", id)
		})
		t.Run("an upgrade where pods hold a port of the node", func(t *testing.T) {
			helm(t, "upgrade", c.name, "../../deploy/helm/sandgate", "--namespace", c.namespace,
				"--reuse-values", "--set", "podAnnotations.upgraded=yes", "--wait", "--timeout", "90s")
			if out := c.run(t, binary("sandgate"), "run", "--", "echo", "out"); out != "out\n" {
				t.Errorf("%q", out)
			}
		})
		t.Run("a Python agent from outside", func(t *testing.T) {
			c.run(t, python, "../../examples/python/agent.py")
		})
		t.Run("conformance", func(t *testing.T) { c.conformance(t, "0.15") })
		t.Run("nothing is left", func(t *testing.T) {
			if out := c.run(t, binary("sandgate"), "ls", "--quiet"); out != "" {
				t.Errorf("sandboxes: %q", out)
			}
		})
		t.Run("S5-15 no other rights", func(t *testing.T) { noOtherRights(t, config, c) })
		t.Run("a server that was taken over owns no node", func(t *testing.T) {
			yes := true
			_, err := c.asServer(t, config).CoreV1().Pods(c.sandboxes).Create(limit(t), &core.Pod{
				ObjectMeta: meta.ObjectMeta{Name: "privileged"},
				Spec: core.PodSpec{Containers: []core.Container{{
					Name: "main", Image: image(), SecurityContext: &core.SecurityContext{Privileged: &yes},
				}}},
			}, meta.CreateOptions{})
			if !kerrors.IsForbidden(err) {
				t.Errorf("a privileged pod: %v", err)
			}
		})
	})
	t.Run("S3-1 S5-2 agentsandbox", func(t *testing.T) {
		t.Parallel()
		// Durable sandboxes run as root on this cluster, which has no fsGroup for
		// directories of the host, so the standard is not enforced there.
		own := namespace(t, client)
		c := install(t, client, config, "agentsandbox", "--set", "sandboxes.createNamespace=false,sandboxes.namespace="+own,
			"--set-json", `config={"templates":[{"name":"default","provider_options":{"sandbox_template":"box"}},`+
				`{"name":"durable","provider_options":{"sandbox_template":"durable","volume_claim_templates":[{"name":"data","storage":"16Mi"}]}}]}`)
		c.sandboxes = own
		d, err := dynamic.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		r := &asHarness{t: t, dynamic: d, namespace: c.sandboxes}
		r.template("box", restricted(pythonImage()), nil)
		r.durable("durable")
		t.Run("S1-8 S1-10 S2-8 S4-3 S5-4 a command from outside", func(t *testing.T) {
			if out := c.run(t, binary("sandgate"), "run", "--", "sh", "-c", "echo out; id -u"); out != "out\n1000\n" {
				t.Errorf("%q", out)
			}
		})
		t.Run("S1-32 S5-5 in the cluster agents are reached at their pods' addresses", func(t *testing.T) { c.reaches(t, "pod-ip") })
		t.Run("S1-29 C21 suspend and resume", c.suspend)
		t.Run("S1-12 C6 a pod dies under a session", func(t *testing.T) { c.sessionsOutliveTheirPods(t, client) })
		t.Run("conformance", func(t *testing.T) { c.conformance(t, "0.08") })
		t.Run("S5-15 no other rights", func(t *testing.T) { noOtherRights(t, config, c) })
	})
}

// conformance holds the installed server to a part of the cases, which does not
// change, or to all of them.
func (c installed) conformance(t *testing.T, fraction string) {
	args := []string{"conformance", "--fraction", fraction, "--seed", "11", "--scale", "0.02"}
	if os.Getenv("SANDGATE_KUBERNETES") == "full" {
		args = []string{"conformance", "--long"}
	}
	t.Log(c.run(t, binary("sandgate"), args...))
}

// asServer is a client with the rights of the server's account.
func (c installed) asServer(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	own := rest.CopyConfig(config)
	own.Impersonate.UserName = "system:serviceaccount:" + c.namespace + ":" + c.name
	own.Impersonate.Groups = []string{"system:serviceaccounts", "system:serviceaccounts:" + c.namespace, "system:authenticated"}
	client, err := kubernetes.NewForConfig(own)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// noOtherRights asks the API server what the server's account may not do.
func noOtherRights(t *testing.T, config *rest.Config, c installed) {
	client := c.asServer(t, config)
	may := func(namespace, verb, group, resource string) bool {
		return may(t, client, namespace, verb, group, resource)
	}
	if !may(c.sandboxes, "create", "", "pods/exec") {
		t.Error("it may not do what it must: the questions are asked of the wrong account")
	}
	for _, no := range [][4]string{
		{c.sandboxes, "list", "", "secrets"}, {c.sandboxes, "watch", "", "secrets"}, {c.sandboxes, "create", "", "serviceaccounts/token"},
		{c.sandboxes, "create", "rbac.authorization.k8s.io", "rolebindings"}, {c.sandboxes, "create", "", "pods/attach"},
		{c.sandboxes, "create", "apps", "deployments"}, {c.sandboxes, "delete", "networking.k8s.io", "networkpolicies"},
		{c.namespace, "create", "", "pods"}, {c.namespace, "create", "", "pods/exec"}, {c.namespace, "get", "", "secrets"},
		{c.namespace, "get", "", "configmaps"}, {c.namespace, "update", "coordination.k8s.io", "leases"},
		{"default", "create", "", "pods"}, {"default", "create", "", "pods/exec"}, {"kube-system", "get", "", "configmaps"},
		{"", "create", "", "namespaces"}, {"", "get", "", "nodes"},
	} {
		if may(no[0], no[1], no[2], no[3]) {
			t.Errorf("it may %s %s %s in %q", no[1], no[2], no[3], no[0])
		}
	}
}
