package kubernetes

import (
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/agentsandbox"
	"github.com/sandgate/sandgate/providers/providertest"
)

// openPodIP is open with the transport pod-ip.
func (r *asHarness) openPodIP(t testing.TB, kubeconfig string) *agentsandbox.Provider {
	t.Helper()
	p, err := agentsandbox.New(t.Context(), agentsandbox.Config{
		Kubeconfig: kubeconfig, Namespace: r.namespace, Transport: agentsandbox.TransportPodIP, AgentPort: podIPPort,
		Agent:  func(string) ([]byte, error) { return agentBinary() },
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func podSecrets(t *testing.T, client *kubernetes.Clientset, namespace string) []core.Secret {
	t.Helper()
	list, err := client.CoreV1().Secrets(namespace).List(limit(t), meta.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=sandgate"})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// killAgent kills the agent that was put into a pod, and ends when none of its
// threads is left to take a connection.
const killAgent = `pid=$(cut -d' ' -f1 /*/.sandgate/agent.pid); kill -9 $pid
while cat /proc/$pid/task/*/stat 2>/dev/null | grep -qv ') Z '; do sleep 0.05; done`

// TestAgentSandboxPodIP: agents that were put into pods of agent-sandbox and are
// reached at the pods' addresses.
func TestAgentSandboxPodIP(t *testing.T) {
	t.Parallel()
	r := newASHarness(t)
	client, _ := clientset(t)
	needAgentSandbox(t, client)
	needPodNetwork(t, client, r.namespace)
	r.template("box", restricted(image()), map[string]any{"networkPolicyManagement": "Unmanaged"})
	p := r.openPodIP(t, account(t, client, r.namespace, chartRules(t, "agentsandbox", "transport=pod-ip")))
	defer func() { _ = p.Close() }()
	create := func(t *testing.T, name string) providers.Info {
		t.Helper()
		spec := asSpec(`{"sandbox_template": "box"}`)
		spec.Tenant, spec.ID, spec.Hash = "t", name, name
		info, err := providertest.Create(limit(t), p, name, spec)
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	t.Run("S1-32 create, execute, find again, delete", func(t *testing.T) {
		create(t, "byip")
		if got := providertest.Shell(t, p, "byip", "echo here; head -c 3000000 /dev/zero | wc -c; env"); !strings.HasPrefix(got, "here\n3000000\n") || strings.Contains(got, "SECRET") {
			t.Errorf("it says %q", got)
		}
		secrets := podSecrets(t, client, r.namespace)
		if len(secrets) != 1 || secrets[0].OwnerReferences[0].Kind != "Pod" || secrets[0].OwnerReferences[0].Name != "byip" {
			t.Fatalf("%d secrets: %+v", len(secrets), secrets)
		}
		// Neither the objects nor the processes show it.
		text := string(secrets[0].Data["agent"])
		pod, err := client.CoreV1().Pods(r.namespace).Get(limit(t), "byip", meta.GetOptions{})
		if err != nil || strings.Contains(pod.String(), text) {
			t.Errorf("the pod shows it, %v", err)
		}
		said := providertest.Shell(t, p, "byip", "cat /proc/*/cmdline | tr '\\0' ' '")
		if strings.Contains(said, text) || !strings.Contains(said, "--listen-tcp :8888") {
			t.Errorf("processes: %q", said)
		}
		// A server with no more than this right to secrets and without exec.
		noExec := r.openPodIP(t, account(t, client, r.namespace, withoutExec(t, "agentsandbox", "pod-ip")))
		defer func() { _ = noExec.Close() }()
		if got := providertest.Shell(t, noExec, "byip", "echo by address"); got != "by address\n" {
			t.Errorf("it says %q", got)
		}
		if err := p.Delete(limit(t), "byip", providers.Condition{}); err != nil {
			t.Fatal(err)
		}
		ctx := limit(t)
		for len(podSecrets(t, client, r.namespace)) > 0 {
			select {
			case <-ctx.Done():
				t.Fatal("the secret does not go with the pod")
			case <-time.After(200 * time.Millisecond):
			}
		}
	})
	t.Run("S1-32 a pod of the pool", func(t *testing.T) {
		spec := asSpec(`{"sandbox_template": "box"}`)
		if err := p.KeepPools(limit(t), []providers.Pool{{Template: "default", Spec: spec, Target: 1}}); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = p.KeepPools(limit(t), nil) }()
		ctx := limit(t)
		for {
			status, err := p.PoolStatus(ctx, "default")
			if err != nil {
				t.Fatal(err)
			}
			if status.Available == 1 {
				break
			}
			time.Sleep(200 * time.Millisecond)
		}
		if info := create(t, "claimed"); !info.FromPool {
			t.Errorf("claim %+v", info)
		}
		if got := providertest.Shell(t, p, "claimed", "echo here"); got != "here\n" {
			t.Errorf("it says %q", got)
		}
	})
	t.Run("S1-32 an agent that was killed, and a pod that was", func(t *testing.T) {
		before := create(t, "killed")
		// The connection that creation left is used up first.
		providertest.Shell(t, p, "killed", "true")
		// The next generation has the same secret, port and pod.
		pod, err := client.CoreV1().Pods(r.namespace).Get(limit(t), "killed", meta.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		execIn(t, client, pod, killAgent)
		conn, err := p.Dial(limit(t), "killed")
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
		info, err := p.Get(limit(t), "killed")
		if err != nil || info.Incarnation == before.Incarnation {
			t.Errorf("%+v, %v", info, err)
		}
		if err := client.CoreV1().Pods(r.namespace).Delete(limit(t), "killed", meta.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
			t.Fatal(err)
		}
		ctx := limit(t)
		for {
			// Its next pod has another address and another secret.
			conn, err := p.Dial(ctx, "killed")
			if err == nil {
				_ = conn.Close()
				if now, err := p.Get(ctx, "killed"); err == nil && now.Incarnation != info.Incarnation {
					break
				}
				continue
			}
			if !errors.Is(err, providers.ErrUnavailable) {
				t.Fatalf("%v", err)
			}
			time.Sleep(200 * time.Millisecond)
		}
		if got := providertest.Shell(t, p, "killed", "echo here"); got != "here\n" {
			t.Errorf("it says %q", got)
		}
	})
	t.Run("S1-32 one without a secret is reached by exec", func(t *testing.T) {
		byExec := r.open(t)
		defer func() { _ = byExec.Close() }()
		spec := asSpec(`{"sandbox_template": "box"}`)
		spec.Tenant, spec.ID, spec.Hash = "t", "before", "before"
		if _, err := providertest.Create(limit(t), byExec, "before", spec); err != nil {
			t.Fatal(err)
		}
		if got := providertest.Shell(t, p, "before", "echo here"); got != "here\n" {
			t.Errorf("it says %q", got)
		}
		create(t, "after")
		if got := providertest.Shell(t, byExec, "after", "echo here"); got != "here\n" {
			t.Errorf("it says %q", got)
		}
	})
}

// TestAgentSandboxPodIPConformance holds the transport to a part of the suite, or to
// all of it.
func TestAgentSandboxPodIPConformance(t *testing.T) {
	t.Parallel()
	r := newASHarness(t)
	client, _ := clientset(t)
	needAgentSandbox(t, client)
	needPodNetwork(t, client, r.namespace)
	r.template("suite", restricted(pythonImage()), map[string]any{"envVarsInjectionPolicy": "Allowed", "networkPolicyManagement": "Unmanaged"})
	providertest.Run(t, providertest.Harness{
		Open:   func(t *testing.T) providers.Provider { return r.openPodIP(t, os.Getenv("KUBECONFIG")) },
		Spec:   func() providers.Spec { return asSpec(`{"sandbox_template": "suite"}`) },
		Pick:   part(t, 5, "claims by address"),
		Except: asExceptions,
	})
}

// asExceptions are what a SandboxTemplate of the tests leaves to the cluster.
var asExceptions = map[string]string{
	"C24_no_network":      "a pod has a network; its NetworkPolicy is the operator's and the cluster's",
	"C24_memory_hog":      "limits are the SandboxTemplate's, not a request's",
	"C24_disk_hog":        "limits are the SandboxTemplate's, not a request's",
	"C24_fork_bomb":       "the number of processes is the kubelet's podPidsLimit",
	"C24_no_process_left": "the number of processes is the kubelet's podPidsLimit",

	"C24_program_node_workers": noPrograms["C24_program_node_workers"],
	"C24_program_git":          noPrograms["C24_program_git"],
	"C24_program_compiler":     noPrograms["C24_program_compiler"],
	"C24_program_sqlite":       noPrograms["C24_program_sqlite"],
}
