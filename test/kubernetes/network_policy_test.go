package kubernetes

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	networking "k8s.io/api/networking/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/providers"
)

// enforce has the cluster enforce network policies until the test ends. Tests that
// do so are not parallel: the others run without, as fast as the cluster can.
func enforce(t *testing.T) {
	t.Helper()
	run := func(ctx context.Context, args ...string) {
		if out, err := exec.CommandContext(ctx, os.Getenv("SANDGATE_CLUSTER"), args...).CombinedOutput(); err != nil {
			t.Errorf("cluster %q: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
		defer cancel()
		run(ctx, "kill", "network-policy", "--signal=TERM")
	})
	run(limit(t), "start", "network-policy")
}

// listener is what pods and sandboxes listen with; it greets whoever connects.
const listener = "nc -ll -p 9000 -e echo here </dev/null >/dev/null 2>&1 & "

// connect is a script that prints "here" if a listener answers, else "closed".
func connect(address string, port any) string {
	return fmt.Sprintf("nc -w 1 %s %v </dev/null 2>/dev/null || echo closed", address, port)
}

// TestNetworkPolicy has the policies that the provider and the chart write seen to
// deny, by kube-router's firewall.
func TestNetworkPolicy(t *testing.T) {
	client, _ := clientset(t)
	if os.Getenv("SANDGATE_CLUSTER") == "" {
		t.Skip("needs a cluster whose enforcement can be turned on: run make test-kubernetes without KUBECONFIG")
	}
	config := podIPConfig(t)
	config.NetworkPolicies, config.AgentFrom = true, []string{config.Namespace + "/app=server"}
	r := newPodIPHarness(t, config)
	r.made(t, "none", rawSpec("none", ""))
	full := rawSpec("full", "")
	full.Network = providers.NetworkFull
	r.made(t, "full", full)
	bystander, server := pod(t, client, config.Namespace), pod(t, client, config.Namespace)
	label := []byte(`{"metadata": {"labels": {"app": "server"}}}`)
	if _, err := client.CoreV1().Pods(server.Namespace).Patch(limit(t), server.Name, types.MergePatchType, label, meta.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	execIn(t, client, bystander, listener)
	r.shell(t, "none", listener)
	r.shell(t, "full", listener)
	ip := func(name string) string { return r.pod(t, config.Namespace, name).Status.PodIP }
	none, other := ip("none"), ip("full")
	node := onNode(t, none)

	// comes waits until a script in a sandbox prints that twice in a row.
	comes := func(t *testing.T, from, script, want string) {
		t.Helper()
		got := ""
		for ctx, times := limit(t), 0; times < 2; {
			if got = r.shell(t, from, script); got == want+"\n" {
				times++
				continue
			}
			times = 0
			select {
			case <-ctx.Done():
				t.Fatalf("%s: %s: %q, never %q", from, script, got, want)
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
	// Nothing is denied while nothing enforces the policy, so it is what denies.
	comes(t, "none", connect(bystander.Status.PodIP, 9000), "here")
	enforce(t)
	t.Run("S3-7 S5-9 C24 without network", func(t *testing.T) {
		comes(t, "none", connect(bystander.Status.PodIP, 9000), "closed")
		comes(t, "none", connect(other, 9000), "closed")
		comes(t, "none", connect(node.ip, node.port), "closed")
		comes(t, "full", connect(none, 9000), "closed")
		if got := execIn(t, client, bystander, connect(none, 9000)); got != "closed\n" {
			t.Errorf("from another pod: %q", got)
		}
	})
	t.Run("S3-7 S5-9 with network", func(t *testing.T) {
		comes(t, "full", connect(bystander.Status.PodIP, 9000), "here")
		comes(t, "full", connect(node.ip, node.port), "here")
		if got := execIn(t, client, bystander, connect(other, 9000)); got != "here\n" {
			t.Errorf("from another pod: %q", got)
		}
	})
	t.Run("S3-7 S5-9 S1-32 the server's way in", func(t *testing.T) {
		if got := r.shell(t, "none", "echo reached"); got != "reached\n" {
			t.Errorf("from the node: %q", got)
		}
		agent := fmt.Sprintf("nc -w 2 %s %d </dev/null >/dev/null 2>&1 && echo open || echo closed", none, podIPPort)
		if got := execIn(t, client, server, agent); got != "open\n" {
			t.Errorf("from a pod with the server's labels: %q", got)
		}
		if got := execIn(t, client, bystander, agent); got != "closed\n" {
			t.Errorf("from another pod: %q", got)
		}
		if got := execIn(t, client, server, connect(none, 9000)); got != "closed\n" {
			t.Errorf("at another port: %q", got)
		}
		if info, err := r.Get(limit(t), "none"); err != nil || slices.Contains(info.NotEnforced, "network") {
			t.Errorf("%+v, %v", info, err)
		}
	})
	t.Run("S3-7 S5-9 the chart's policy keeps private addresses from sandboxes with network", func(t *testing.T) {
		policy := chartEgress(t)
		policy.Namespace = config.Namespace
		// kube-router rejects ranges of a protocol that it doesn't serve here.
		policy.Spec.Egress[0].To = slices.DeleteFunc(policy.Spec.Egress[0].To, func(to networking.NetworkPolicyPeer) bool {
			return to.IPBlock != nil && strings.Contains(to.IPBlock.CIDR, ":")
		})
		if _, err := client.NetworkingV1().NetworkPolicies(policy.Namespace).Create(limit(t), policy, meta.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		comes(t, "full", connect(bystander.Status.PodIP, 9000), "closed")
		if got := r.shell(t, "full", "echo reached"); got != "reached\n" {
			t.Errorf("the server's way in: %q", got)
		}
	})
}

// TestAgentSandboxNetworkPolicy has the policy of a SandboxTemplate, which a sandbox
// with the network mode PROXY needs, seen to deny all ways but the proxy.
func TestAgentSandboxNetworkPolicy(t *testing.T) {
	client, _ := clientset(t)
	if os.Getenv("SANDGATE_CLUSTER") == "" {
		t.Skip("needs a cluster whose enforcement can be turned on: run make test-kubernetes without KUBECONFIG")
	}
	r := newASHarness(t)
	needPodNetwork(t, client, r.namespace)
	r.template("denied", restricted(image(), asksAgent), denied)
	port := contentServer(t)
	s := proxied(r, `{"sandbox_template": "denied"}`, 0).serve(t, port)
	box, _, err := s.client.Create(limit(t), sandgate.CreateRequest{Spec: &sandgate.Spec{Network: allowing("ok.example", port)}})
	if err != nil {
		t.Fatal(err)
	}
	bystander := pod(t, client, r.namespace)
	execIn(t, client, bystander, listener)
	node := onNode(t, bystander.Status.PodIP)
	comes := func(script, want string) {
		t.Helper()
		got := ""
		for ctx, times := limit(t), 0; times < 2; {
			if got, _ = sh(t, box, script); got == want {
				times++
				continue
			}
			times = 0
			select {
			case <-ctx.Done():
				t.Fatalf("%s: %q, never %q", script, got, want)
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
	// Nothing is denied while nothing enforces the policy, so it is what denies.
	comes(connect(bystander.Status.PodIP, 9000), "here")
	fetches(t, box, port)
	enforce(t)
	comes(connect(bystander.Status.PodIP, 9000), "closed")
	comes(connect(node.ip, node.port), "closed")
	fetches(t, box, port)
}

// chartEgress is the chart's policy for sandboxes with network.
func chartEgress(t *testing.T) *networking.NetworkPolicy {
	t.Helper()
	out, err := exec.CommandContext(limit(t), "helm", "template", "sandgate", "../../deploy/helm/sandgate",
		"--show-only", "templates/networkpolicy.yaml", "--set", "tls.secretName=tls,auth.tokensSecretName=tokens").Output()
	if err != nil {
		t.Fatal("helm template: ", err)
	}
	path := filepath.Join(t.TempDir(), "chart.yaml")
	if err := os.WriteFile(path, out, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, u := range objectsIn(t, path) {
		policy := &networking.NetworkPolicy{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, policy); err != nil {
			t.Fatal(err)
		}
		if policy.Name == "sandgate-network-full" {
			return policy
		}
	}
	t.Fatalf("the chart has no such policy: %s", out)
	return nil
}

// endpoint is an address with a listener.
type endpoint struct {
	ip   string
	port int
}

// onNode greets whoever connects to the node at the address that it has in the
// network of a pod.
func onNode(t *testing.T, pod string) endpoint {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range addresses {
		in, ok := address.(*net.IPNet)
		if !ok || !in.Contains(net.ParseIP(pod)) {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort(in.IP.String(), "0"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = fmt.Fprintln(conn, "here")
				_ = conn.Close()
			}
		}()
		return endpoint{in.IP.String(), l.Addr().(*net.TCPAddr).Port}
	}
	t.Fatalf("this machine has no address in the network of %s", pod)
	return endpoint{}
}
