// Package faults kills what a stream to a pod goes through, one thing after the
// other, while commands write through both providers, and compares what arrived.
// It has the cluster for itself: "make test-kubernetes" runs it after the other
// tests, on the cluster of "make cluster-up" only.
package faults

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// harness is a test's own namespace with both providers, by some transports.
type harness struct {
	t         *testing.T
	cluster   string
	client    *kubernetes.Clientset
	objects   dynamic.Interface
	namespace string
	// api is in front of the API server; kubeconfig, which the servers read, leads to it.
	api        *front
	kubeconfig string
	sides      []*side
}

// side is one provider by one transport: two servers on one cluster
// behind one address, and a client.
type side struct {
	harness   *harness
	provider  string
	transport string
	servers   [2]*server
	turn      int // whose it is
	front     *front
	client    *sandgate.Client
}

func (s *side) String() string {
	if s.transport == "exec" {
		return s.provider
	}
	return s.provider + " by " + s.transport
}

type server struct {
	address string
	cmd     *exec.Cmd
}

// The resources of agent-sandbox.
var (
	templates = schema.GroupVersionResource{Group: "extensions.agents.x-k8s.io", Version: "v1beta1", Resource: "sandboxtemplates"}
	claims    = schema.GroupVersionResource{Group: "extensions.agents.x-k8s.io", Version: "v1beta1", Resource: "sandboxclaims"}
	sandboxes = schema.GroupVersionResource{Group: "agents.x-k8s.io", Version: "v1beta1", Resource: "sandboxes"}
)

func newHarness(t *testing.T, transports ...string) *harness {
	t.Helper()
	cluster, kubeconfig := os.Getenv("SANDGATE_CLUSTER"), os.Getenv("KUBECONFIG")
	if cluster == "" || kubeconfig == "" {
		t.Skip("needs a cluster whose parts may be killed: run make test-kubernetes without KUBECONFIG")
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	r := &harness{t: t, cluster: cluster}
	if r.client, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	if r.objects, err = dynamic.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	made, err := r.client.CoreV1().Namespaces().Create(t.Context(), &core.Namespace{ObjectMeta: meta.ObjectMeta{GenerateName: "faults-"}}, meta.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.namespace = made.Name
	t.Cleanup(func() {
		if err := r.client.CoreV1().Namespaces().Delete(context.Background(), r.namespace, meta.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	r.putFrontBefore(config.Host)
	r.template("box", core.RestartPolicyAlways)
	r.template("once", core.RestartPolicyNever)
	r.template("on-failure", core.RestartPolicyOnFailure)
	for _, transport := range transports {
		r.sides = append(r.sides, r.side("kubernetes", transport), r.side("agentsandbox", transport))
	}
	return r
}

// putFrontBefore gives the servers a way to the API server that can be cut.
func (r *harness) putFrontBefore(host string) {
	r.t.Helper()
	at, err := url.Parse(host)
	if err != nil {
		r.t.Fatal(err)
	}
	r.api = newFront(r.t, "tcp", at.Host)
	file, err := clientcmd.LoadFromFile(os.Getenv("KUBECONFIG"))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, c := range file.Clusters {
		c.Server = "https://" + r.api.address
	}
	r.kubeconfig = filepath.Join(r.t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*file, r.kubeconfig); err != nil {
		r.t.Fatal(err)
	}
}

// template makes a SandboxTemplate. Its process ends when it is told to.
func (r *harness) template(name string, restart core.RestartPolicy) {
	r.t.Helper()
	const text = "trap exit TERM; while :; do sleep 3600 & wait; done"
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": templates.GroupVersion().String(), "kind": "SandboxTemplate",
		"metadata": map[string]any{"name": name},
		"spec": map[string]any{"podTemplate": map[string]any{"spec": map[string]any{
			"dnsPolicy": "Default", "restartPolicy": string(restart),
			"securityContext": map[string]any{"runAsUser": int64(1000)},
			"containers": []any{map[string]any{
				"name": "main", "image": "docker.io/sandgate/busybox:test", "command": []any{"sh", "-c", text}, "workingDir": "/tmp",
				"resources":    map[string]any{"limits": map[string]any{"memory": "256Mi"}},
				"volumeMounts": []any{map[string]any{"name": "tmp", "mountPath": "/tmp"}},
			}},
			"volumes": []any{map[string]any{"name": "tmp", "emptyDir": map[string]any{}}},
		}}},
	}}
	if _, err := r.objects.Resource(templates).Namespace(r.namespace).Create(r.t.Context(), u, meta.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *harness) side(provider, transport string) *side {
	r.t.Helper()
	s := &side{harness: r, provider: provider, transport: transport}
	for i := range s.servers {
		s.servers[i] = s.serve()
	}
	s.connect()
	return s
}

// connect puts an address before the first server, and a client before that.
func (s *side) connect() {
	r := s.harness
	r.t.Helper()
	s.front = newFront(r.t, "unix", s.servers[0].address)
	var err error
	if s.client, err = sandgate.NewClient(r.t.Context(), sandgate.WithAddress(s.front.address), sandgate.WithReconnectTimeout(2*time.Minute)); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = s.client.Close() })
}

// configuration has the templates "default", "once" and "on-failure". With
// agent-sandbox, they differ in their pods' restart policy. The kubernetes
// provider's pods are never restarted.
func (s *side) configuration() string {
	of := func(name string) string {
		options := "{}"
		if s.provider == "agentsandbox" {
			options = "{sandbox_template: " + name + "}"
		}
		return "network: full, resources: {memory_bytes: 268435456}, provider_options: " + options + "}\n"
	}
	return `
# Verifying the network makes pods and a ConfigMap of its own, at its own times.
kubernetes: {image: "docker.io/sandgate/busybox:test", agent_image: "docker.io/sandgate/agent:test", verify_network: 0s}
templates:
  - {name: default, ` + of("box") + `  - {name: once, ` + of("once") + `  - {name: on-failure, ` + of("on-failure")
}

// serve starts one server. Each has a state directory of its own: what the
// servers share is in the cluster.
func (s *side) serve() *server {
	r := s.harness
	r.t.Helper()
	dir, err := os.MkdirTemp("", "sandgate-faults-")
	if err != nil {
		r.t.Fatal(err)
	}
	made := &server{address: filepath.Join(dir, "s.sock")}
	config := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(config, []byte(s.configuration()), 0o600); err != nil {
		r.t.Fatal(err)
	}
	made.cmd = exec.Command(program(), "serve", "--listen", "unix://"+made.address, "--state-dir", dir, "--config", config,
		"--provider", s.provider, "--kubernetes-transport", s.transport, "--kubernetes-namespace", r.namespace, "--kubernetes-kubeconfig", r.kubeconfig)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		r.t.Fatal(err)
	}
	made.cmd.Stderr = log
	if err := made.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		_ = made.cmd.Process.Kill()
		_ = made.cmd.Wait()
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && r.t.Failed() {
			r.t.Logf("a server of %s: %s", s.provider, text)
		}
		_ = os.RemoveAll(dir)
	})
	eventually(r.t, 30*time.Second, "the server listens", func() bool {
		conn, err := net.Dial("unix", made.address)
		if err != nil {
			return false
		}
		return conn.Close() == nil
	})
	return made
}

func program() string {
	if path := os.Getenv("SANDGATE_BIN"); path != "" {
		return path
	}
	path, _ := filepath.Abs("../../../bin/sandgate")
	return path
}

func eventually(t *testing.T, within time.Duration, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

// component runs a command of the cluster's own.
func (r *harness) component(t *testing.T, verb, name string) {
	t.Helper()
	if out, err := exec.Command(r.cluster, verb, name).CombinedOutput(); err != nil {
		t.Fatalf("cluster %s %s: %v: %s", verb, name, err, out)
	}
}

// create makes a sandbox that goes with the test.
func (s *side) create(t *testing.T, template string) *sandgate.Sandbox {
	t.Helper()
	box, _, err := s.client.Create(t.Context(), sandgate.CreateRequest{Template: template})
	if err != nil {
		t.Fatalf("%s: %v", s.provider, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := s.client.Delete(ctx, box.ID()); err != nil && !errors.Is(err, sandgate.ErrSandboxNotFound) {
			t.Errorf("%s: %v", s.provider, err)
		}
	})
	return box
}

// nothingLeft is the last thing that a test asks.
func (r *harness) nothingLeft(t *testing.T) {
	t.Helper()
	ctx, all := t.Context(), meta.ListOptions{}
	var left []string
	defer func() {
		if t.Failed() {
			t.Log(left)
		}
	}()
	eventually(t, time.Minute, "nothing is left", func() bool {
		left = nil
		pods, err := r.client.CoreV1().Pods(r.namespace).List(ctx, all)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range pods.Items {
			left = append(left, "pod "+o.Name)
		}
		maps, err := r.client.CoreV1().ConfigMaps(r.namespace).List(ctx, all)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range maps.Items {
			// The journal of events is of the server, and bounded.
			if o.Name != "kube-root-ca.crt" && !strings.HasPrefix(o.Name, "sandgate-ledger-events-") {
				left = append(left, "ConfigMap "+o.Name)
			}
		}
		secrets, err := r.client.CoreV1().Secrets(r.namespace).List(ctx, all)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range secrets.Items {
			left = append(left, "Secret "+o.Name)
		}
		for _, resource := range []schema.GroupVersionResource{claims, sandboxes} {
			list, err := r.objects.Resource(resource).Namespace(r.namespace).List(ctx, all)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range list.Items {
				left = append(left, o.GetKind()+" "+o.GetName())
			}
		}
		return len(left) == 0
	})
}
