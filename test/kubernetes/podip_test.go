package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/sandgate/sandgate/providers"
	raw "github.com/sandgate/sandgate/providers/kubernetes"
	"github.com/sandgate/sandgate/streaming/sealed"
)

var podNetwork struct {
	once sync.Once
	err  error
}

// needPodNetwork skips a test where this machine cannot reach pods.
func needPodNetwork(t *testing.T, client *kubernetes.Clientset, namespace string) {
	t.Helper()
	podNetwork.once.Do(func() {
		// Nobody listens there, which a pod that can be reached says.
		address := net.JoinHostPort(pod(t, client, namespace).Status.PodIP, "1")
		conn, err := net.DialTimeout("tcp", address, 5*time.Second)
		if err == nil {
			_ = conn.Close()
		} else if !errors.Is(err, syscall.ECONNREFUSED) {
			podNetwork.err = err
		}
	})
	if podNetwork.err != nil {
		t.Skipf("needs a machine that can reach pods: %v", podNetwork.err)
	}
}

// podIPPort is not the default, so that the setting is seen to work.
const podIPPort = 8888

func podIPConfig(t *testing.T) raw.Config {
	t.Helper()
	config := rawConfig(t)
	config.AgentImage, config.Transport, config.AgentPort = agentImage(), raw.TransportPodIP, podIPPort
	return config
}

func newPodIPHarness(t *testing.T, config raw.Config) rawHarness {
	t.Helper()
	client, _ := clientset(t)
	r := rawHarness{Provider: openRaw(t, config), config: config, client: client}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	needPodNetwork(t, client, config.Namespace)
	return r
}

// withoutExec are the chart's rules for a transport, without the right to exec:
// what works with them goes by the pods' ports.
func withoutExec(t *testing.T, provider, transport string) []rbac.PolicyRule {
	t.Helper()
	return slices.DeleteFunc(chartRules(t, provider, "transport="+transport), func(r rbac.PolicyRule) bool {
		return slices.Contains(r.Resources, "pods/exec")
	})
}

// TestRawPodIP: raw pods whose agents are reached at their own addresses.
func TestRawPodIP(t *testing.T) {
	t.Parallel()
	client, _ := clientset(t)
	config := podIPConfig(t)
	config.Kubeconfig = account(t, client, config.Namespace, withoutExec(t, "kubernetes", "pod-ip"))
	r := newPodIPHarness(t, config)

	t.Run("S1-32 S5-5 create, execute, copy and delete without a single exec", func(t *testing.T) {
		r.made(t, "byip", rawSpec("byip", ""))
		if got := r.shell(t, "byip", "echo here; head -c 3000000 /dev/zero | wc -c; env"); !strings.HasPrefix(got, "here\n3000000\n") || strings.Contains(got, "SECRET") {
			t.Errorf("it says %q", got)
		}
		if got := r.shell(t, "byip", "cat /proc/1/environ || echo closed"); !strings.HasSuffix(got, "closed\n") {
			t.Errorf("a command reads the agent's environment: %q", got)
		}
		pod := r.pod(t, config.Namespace, "byip")
		main := pod.Spec.Containers[0]
		if len(main.Ports) != 1 || main.Ports[0].ContainerPort != podIPPort || main.Ports[0].HostPort != 0 {
			t.Errorf("ports %+v", main.Ports)
		}
		if data, err := json.Marshal(pod); err != nil || strings.Contains(string(data), secretOf(t, r, "byip").Text()) {
			t.Errorf("the pod shows the secret: %v", err)
		}
		if err := r.Delete(limit(t), "byip", providers.Condition{}); err != nil {
			t.Fatal(err)
		}
		r.nothingLeft(t, "byip")
	})
	t.Run("S1-32 another server finds it", func(t *testing.T) {
		r.made(t, "restart", rawSpec("restart", ""))
		r.shell(t, "restart", "echo kept >/workspace/file")
		other := rawHarness{Provider: openRaw(t, config), config: config, client: client}
		defer func() { _ = other.Close() }()
		if got := other.shell(t, "restart", "cat /workspace/file"); got != "kept\n" {
			t.Errorf("it says %q", got)
		}
	})
	t.Run("S1-32 a pod of the pool", func(t *testing.T) {
		pools := poolOf(1)
		pools[0].Spec.TemplateOptions = nil // a setup script takes an exec
		if err := r.KeepPools(limit(t), pools); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.KeepPools(limit(t), nil) }()
		pooled(t, r.Provider, "default", full)
		spec := poolSpec("claimed")
		spec.TemplateOptions = nil
		if info := r.made(t, "claimed", spec); !info.FromPool {
			t.Errorf("claim %+v", info)
		}
		if got := r.shell(t, "claimed", "echo $FROM_TEMPLATE"); got != "yes\n" {
			t.Errorf("it says %q", got)
		}
	})
	t.Run("S1-32 a pod that was killed", func(t *testing.T) {
		r.made(t, "killed", rawSpec("killed", ""))
		pod := r.pod(t, config.Namespace, "killed")
		if err := client.CoreV1().Pods(pod.Namespace).Delete(limit(t), pod.Name, meta.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		conn, err := r.Dial(limit(t), "killed")
		for err == nil { // its last connections may still be taken
			_ = conn.Close()
			conn, err = r.Dial(limit(t), "killed")
		}
		if !errors.Is(err, providers.ErrNotActive) || time.Since(began) > 15*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// secretOf is what the agent of a sandbox knows its server by.
func secretOf(t *testing.T, r rawHarness, name string) sealed.Secret {
	t.Helper()
	pod := r.pod(t, r.config.Namespace, name)
	at := slices.IndexFunc(pod.Spec.Containers[0].Env, func(e core.EnvVar) bool { return e.Name == "SANDGATE_AGENT_SECRET" })
	object, err := r.client.CoreV1().Secrets(pod.Namespace).Get(limit(t), pod.Spec.Containers[0].Env[at].ValueFrom.SecretKeyRef.Name, meta.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	secret, err := sealed.ParseSecret(string(object.Data["agent"]))
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

// TestRawPodIPUnauthenticated: a caller without a sandbox's secret gets nothing
// from its agent, and a dial to an address that now belongs to another pod fails.
func TestRawPodIPUnauthenticated(t *testing.T) {
	t.Parallel()
	config := podIPConfig(t)
	config.AgentPort = int32(freePort(t)) // there is a test on this machine's own
	r := newPodIPHarness(t, config)
	r.made(t, "one", rawSpec("one", ""))
	r.made(t, "two", rawSpec("two", ""))
	one, two := r.pod(t, r.config.Namespace, "one"), r.pod(t, r.config.Namespace, "two")
	address := net.JoinHostPort(one.Status.PodIP, fmt.Sprint(config.AgentPort))
	t.Run("S1-32 C25 from the host", func(t *testing.T) {
		dial := func() net.Conn {
			t.Helper()
			conn, err := net.DialTimeout("tcp", address, waitTimeout)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			return conn
		}
		if _, err := sealed.Client(limit(t), dial(), secretOf(t, r, "two")); !errors.Is(err, sealed.ErrUnauthenticated) {
			t.Errorf("with another sandbox's secret: %v", err)
		}
		plain := dial()
		if _, err := io.WriteString(plain, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		_ = plain.SetReadDeadline(time.Now().Add(waitTimeout))
		if said, err := io.ReadAll(plain); err != nil && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "reset") || len(said) > 100 {
			t.Errorf("in plain text: %q, %v", said, err)
		}
		conn, err := sealed.Client(limit(t), dial(), secretOf(t, r, "one"))
		if err != nil {
			t.Fatalf("with its own: %v", err)
		}
		_ = conn.Close()
	})
	t.Run("S1-32 C25 from another pod", func(t *testing.T) {
		said := execIn(t, r.client, pod(t, r.client, r.config.Namespace), fmt.Sprintf(
			"printf 'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n' | nc -w 5 %s %d | wc -c", one.Status.PodIP, r.config.AgentPort))
		// An alert of TLS has seven bytes.
		if count := strings.TrimSpace(said); count != "0" && count != "7" {
			t.Errorf("it got %q", said)
		}
	})
	t.Run("S1-32 an address that is another pod's by now", func(t *testing.T) {
		err := dialAt(t, r, "one", two.Status.PodIP, "another pod")
		if !errors.Is(err, providers.ErrUnavailable) {
			t.Errorf("%v", err)
		}
	})
	t.Run("S1-32 an address that cannot be reached", func(t *testing.T) {
		// Somebody takes connections there and never says a word, which from here
		// is the same.
		l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", r.config.AgentPort))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		began := time.Now()
		err = dialAt(t, r, "one", "127.0.0.1", "cannot be reached")
		if !errors.Is(err, providers.ErrUnavailable) || !strings.Contains(err.Error(), "network policy") || !strings.Contains(err.Error(), "exec") {
			t.Errorf("%v", err)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("after %v", took)
		}
	})
}

// dialAt dials a sandbox whose pod's status says another address. The kubelet
// puts the status right after a while, so it is said until the error tells of
// it.
func dialAt(t *testing.T, r rawHarness, name, ip, says string) error {
	t.Helper()
	pods := r.client.CoreV1().Pods(r.config.Namespace)
	status := fmt.Appendf(nil, `{"status": {"podIP": %q, "podIPs": [{"ip": %q}]}}`, ip, ip)
	restore := r.pod(t, r.config.Namespace, name).Status
	defer func() {
		data := fmt.Appendf(nil, `{"status": {"podIP": %q, "podIPs": [{"ip": %q}]}}`, restore.PodIP, restore.PodIP)
		if _, err := pods.Patch(limit(t), name, types.MergePatchType, data, meta.PatchOptions{}, "status"); err != nil {
			t.Error(err)
		}
	}()
	for {
		if _, err := pods.Patch(limit(t), name, types.MergePatchType, status, meta.PatchOptions{}, "status"); err != nil {
			t.Fatal(err)
		}
		conn, err := r.Dial(limit(t), name)
		if err != nil && strings.Contains(err.Error(), says) {
			return err
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
	}
}

// execIn runs a script in a pod.
func execIn(t *testing.T, client *kubernetes.Clientset, in *core.Pod, script string) string {
	t.Helper()
	_, config := clientset(t)
	request := client.CoreV1().RESTClient().Post().Resource("pods").SubResource("exec").Namespace(in.Namespace).Name(in.Name).
		VersionedParams(&core.PodExecOptions{Command: []string{"sh", "-c", script}, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(config, "GET", request.URL().String())
	if err != nil {
		t.Fatal(err)
	}
	var out, errOut bytes.Buffer
	if err := executor.StreamWithContext(limit(t), remotecommand.StreamOptions{Stdout: &out, Stderr: &errOut}); err != nil {
		t.Fatalf("%v: %s", err, errOut.String())
	}
	return out.String()
}

// TestRawPodIPMixed: servers of either transport serve sandboxes that were made
// by the other.
func TestRawPodIPMixed(t *testing.T) {
	t.Parallel()
	byIP := newPodIPHarness(t, podIPConfig(t))
	config := byIP.config
	config.Transport = raw.TransportExec
	byExec := newPodIPHarness(t, config)
	t.Run("S1-32 one without a secret is reached by exec", func(t *testing.T) {
		byExec.made(t, "before", rawSpec("before", ""))
		if got := byIP.shell(t, "before", "echo here"); got != "here\n" {
			t.Errorf("it says %q", got)
		}
	})
	t.Run("S1-32 one that listens is reached by exec as well", func(t *testing.T) {
		byIP.made(t, "after", rawSpec("after", `{"setup_script": "env >/workspace/setup"}`))
		if got := byExec.shell(t, "after", "cat /workspace/setup; env"); strings.Contains(got, "SANDGATE_AGENT_SECRET") || !strings.Contains(got, "HOME=") {
			t.Errorf("it says %q", got)
		}
	})
	t.Run("S3-7 S5-9 the policy lets in who is said, whichever server was last", func(t *testing.T) {
		policies := byIP.client.NetworkingV1().NetworkPolicies(config.Namespace)
		policy, err := policies.Get(limit(t), "sandgate-network-none", meta.GetOptions{})
		if err != nil || len(policy.Spec.Ingress) != 0 {
			t.Fatalf("with nobody said, it lets in somebody: %+v, %v", policy, err)
		}
		with := byIP.config
		with.AgentFrom = []string{config.Namespace + "/app=sandgate"}
		newPodIPHarness(t, with)
		ctx := limit(t)
		for len(policy.Spec.Ingress) == 0 {
			select {
			case <-ctx.Done():
				t.Fatal("it does not let in the server")
			case <-time.After(100 * time.Millisecond):
			}
			if policy, err = policies.Get(ctx, policy.Name, meta.GetOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if rule := policy.Spec.Ingress[0]; rule.Ports[0].Port.StrVal != "sandgate-agent" || rule.From[0].PodSelector.MatchLabels["app"] != "sandgate" {
			t.Errorf("%+v", rule)
		}
	})
	t.Run("S3-9 S5-11 a namespace of its own", func(t *testing.T) {
		name := "podip-" + config.Namespace
		byIP.made(t, name, rawSpec(name, `{"namespace_per_sandbox": true}`))
		if got := byIP.shell(t, name, "echo here"); got != "here\n" {
			t.Errorf("it says %q", got)
		}
		if err := byIP.Delete(limit(t), name, providers.Condition{}); err != nil {
			t.Fatal(err)
		}
		ctx := limit(t)
		for slices.ContainsFunc(podSecrets(t, byIP.client, config.Namespace), func(s core.Secret) bool { return strings.HasPrefix(s.Name, name) }) {
			select {
			case <-ctx.Done():
				t.Fatal("its secret is left")
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	t.Run("S5-7 an id that is used again has an environment of its own", func(t *testing.T) {
		for _, value := range []string{"first", "second", "third"} {
			spec := rawSpec("again", "")
			spec.Env = map[string]string{"VALUE": value}
			byIP.made(t, "again", spec)
			if got := byIP.shell(t, "again", "echo $VALUE"); got != value+"\n" {
				t.Errorf("it has %q, not %q", got, value)
			}
			if err := byIP.Delete(limit(t), "again", providers.Condition{}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestRawPodIPAccess: the right to read secrets is all that the transport needs.
func TestRawPodIPAccess(t *testing.T) {
	t.Parallel()
	client, _ := clientset(t)
	config := podIPConfig(t)
	config.Kubeconfig = account(t, client, config.Namespace, chartRules(t, "kubernetes", "transport=exec"))
	r := newPodIPHarness(t, config)
	t.Run("S5-15 a rule that is missing is named", func(t *testing.T) {
		_, _, err := r.Create(limit(t), "x", rawSpec("x", ""))
		if !errors.Is(err, providers.ErrForbidden) && !errors.Is(err, providers.ErrAgentCannotStart) || err == nil || !strings.Contains(err.Error(), "secrets") {
			t.Errorf("%v", err)
		}
		ctx, cancel := context.WithTimeout(limit(t), waitTimeout)
		defer cancel()
		if _, err := r.Get(ctx, "x"); !errors.Is(err, providers.ErrNotFound) {
			t.Errorf("it is left: %v", err)
		}
	})
}

// TestRawPodIPConformance holds the transport to a part of the suite, or to all of it.
func TestRawPodIPConformance(t *testing.T) {
	t.Parallel()
	client, _ := clientset(t)
	config := podIPConfig(t)
	needPodNetwork(t, client, config.Namespace)
	config.Image = pythonImage()
	conformance(t, config, `{"disk_medium": "Memory"}`, part(t, 8, "pod-ip"), nil)
}
