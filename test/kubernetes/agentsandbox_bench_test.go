package kubernetes

import (
	"fmt"
	"io"
	"log/slog"
	"slices"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/agentsandbox"
	"github.com/sandgate/sandgate/providers/providertest"
)

// BenchmarkAgentSandboxWarm measures from the call of Create to the agent's
// first words on a connection, from a pool whose pods have their agent, against
// what a client would do by hand: a claim on a pool of the same template until
// it is ready, and two execs. They take turns; the ratio of the medians is what
// means something.
func BenchmarkAgentSandboxWarm(b *testing.B) {
	r := newASHarness(b)
	r.template("bench", restricted(image()), nil)
	r.pool("plain", "bench", 2)
	p, err := agentsandbox.New(b.Context(), agentsandbox.Config{
		Namespace: r.namespace, Logger: slog.New(slog.DiscardHandler),
		Agent: func(string) ([]byte, error) { return agentBinary() },
	})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	spec := asSpec(`{"sandbox_template": "bench"}`)
	if err := p.KeepPools(b.Context(), []providers.Pool{{Template: spec.Template, Spec: spec, Target: 2}}); err != nil {
		b.Fatal(err)
	}
	var ours, plain []time.Duration
	for i := 0; b.Loop(); i++ {
		r.settle(b, 4)
		plain = append(plain, r.plainClaim(b, fmt.Sprintf("plain-%d", i)))
		r.settle(b, 4)
		name := fmt.Sprintf("ours-%d", i)
		began := time.Now()
		info, err := providertest.Create(b.Context(), p, name, named(spec, name))
		if err != nil {
			b.Fatal(err)
		}
		conn, err := p.Dial(b.Context(), name)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			b.Fatal(err)
		}
		ours = append(ours, time.Since(began))
		if !info.FromPool {
			b.Errorf("%s is not from the pool", name)
		}
		_ = conn.Close()
		if err := p.Delete(b.Context(), name, providers.Condition{}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(median(ours).Microseconds())/1000, "create-ms")
	b.ReportMetric(float64(median(plain).Microseconds())/1000, "plain-ms")
	b.ReportMetric(float64(median(ours))/float64(median(plain)), "ratio")
}

func median(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}

// settle waits until that many pods run and nothing else is going on.
func (r *asHarness) settle(t testing.TB, n int) {
	t.Helper()
	for deadline := time.Now().Add(waitTimeout); ; time.Sleep(50 * time.Millisecond) {
		pods := r.pods()
		ready := 0
		for _, pod := range pods {
			with := pod.Annotations["sandgate.dev/agent"] != "" || pod.GenerateName == "plain-" || len(pod.Name) > 6 && pod.Name[:6] == "plain-"
			if pod.Status.Phase == core.PodRunning && pod.DeletionTimestamp == nil && with {
				ready++
			}
		}
		if len(pods) == n && ready == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d pods are ready", ready, len(pods))
		}
	}
}

// plainClaim makes a claim, waits until it is ready, and runs two commands.
func (r *asHarness) plainClaim(t testing.TB, name string) time.Duration {
	t.Helper()
	ctx := limit(t)
	claims := r.dynamic.Resource(sandboxClaims).Namespace(r.namespace)
	began := time.Now()
	made, err := claims.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": sandboxClaims.GroupVersion().String(), "kind": "SandboxClaim", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"warmPoolRef": map[string]any{"name": "plain"}},
	}}, meta.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := claims.Watch(ctx, meta.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: made.GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	pod := ""
	for e := range w.ResultChan() {
		if u, ok := e.Object.(*unstructured.Unstructured); ok && e.Type == watch.Modified && ready(u) {
			pod, _, _ = unstructured.NestedString(u.Object, "status", "sandbox", "name")
			break
		}
	}
	for range 2 {
		r.exec(t, pod, "true")
	}
	took := time.Since(began)
	foreground, none := meta.DeletePropagationForeground, int64(0)
	client, _ := clientset(t)
	if err := claims.Delete(ctx, name, meta.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		t.Fatal(err)
	}
	_ = client.CoreV1().Pods(r.namespace).Delete(ctx, pod, meta.DeleteOptions{GracePeriodSeconds: &none})
	return took
}

func (r *asHarness) exec(t testing.TB, pod string, command ...string) {
	t.Helper()
	client, config := clientset(t)
	url := client.CoreV1().RESTClient().Post().Resource("pods").Namespace(r.namespace).Name(pod).SubResource("exec").
		VersionedParams(&core.PodExecOptions{Command: command, Stdout: true}, scheme.ParameterCodec).URL()
	e, err := remotecommand.NewWebSocketExecutor(config, "GET", url.String())
	if err != nil {
		t.Fatal(err)
	}
	if err := e.StreamWithContext(limit(t), remotecommand.StreamOptions{Stdout: io.Discard}); err != nil {
		t.Fatal(err)
	}
}
