package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sandgate/sandgate/bench/report"
	sandgate "github.com/sandgate/sandgate/clients/go"
)

// The kinds of agent-sandbox.
var (
	templates = extension("sandboxtemplates")
	pools     = extension("sandboxwarmpools")
	claims    = extension("sandboxclaims")
)

func extension(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "extensions.agents.x-k8s.io", Version: "v1beta1", Resource: resource}
}

// plainPool is the warm pool of the other side: of the same template, with as
// many pods as Sandgate's.
const (
	plainPool = "plain"
	poolSize  = 2
)

// claimConfig is Sandgate's side: a pool of its own of the SandboxTemplate.
const claimConfig = `
templates:
  - name: default
    network: full
    pool: 2
    provider_options: {sandbox_template: bench}
`

// claimed is the server whose sandboxes are claims on a SandboxTemplate with this
// pod, in a namespace where the plain pool is full as well.
func (b *bench) claimed(ctx context.Context, name string, spec corev1.PodSpec) (*server, error) {
	if s := b.servers[name]; s != nil {
		return s, b.settled(ctx, s)
	}
	if _, err := b.client.Discovery().ServerResourcesForGroupVersion(claims.GroupVersion().String()); err != nil {
		return nil, &report.CannotRun{Reason: "agent-sandbox is not on the cluster: " + err.Error()}
	}
	namespace, err := b.namespace(ctx)
	if err != nil {
		return nil, err
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&spec)
	if err != nil {
		return nil, err
	}
	err = b.object(ctx, templates, "SandboxTemplate", namespace, "bench", map[string]any{
		"podTemplate": map[string]any{"spec": fields}, "networkPolicyManagement": "Unmanaged",
	})
	if err != nil {
		return nil, err
	}
	err = b.object(ctx, pools, "SandboxWarmPool", namespace, plainPool, map[string]any{
		"replicas": int64(poolSize), "sandboxTemplateRef": map[string]any{"name": "bench"},
	})
	if err != nil {
		return nil, err
	}
	s, err := b.serve(ctx, name, namespace, claimConfig, "--provider", "agentsandbox")
	if err != nil {
		return nil, err
	}
	return s, b.settled(ctx, s)
}

func (b *bench) object(ctx context.Context, resource schema.GroupVersionResource, kind, namespace, name string, spec map[string]any) error {
	_, err := b.dynamic.Resource(resource).Namespace(namespace).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": resource.GroupVersion().String(), "kind": kind,
		"metadata": map[string]any{"name": name}, "spec": spec,
	}}, metav1.CreateOptions{})
	return err
}

// settled waits until both pools are full, so that no pod starts beside what is
// measured.
func (b *bench) settled(ctx context.Context, s *server) error {
	err := wait(ctx, "the plain pool", func() (bool, error) {
		pool, err := b.dynamic.Resource(pools).Namespace(s.namespace).Get(ctx, plainPool, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		ready, _, err := unstructured.NestedInt64(pool.Object, "status", "readyReplicas")
		return ready == poolSize, err
	})
	if err != nil {
		return err
	}
	return s.full(ctx)
}

// restricted is a pod's spec under the restricted standard, with what Sandgate's
// own pods have: a read-only root and the writable directories of deepagents.
func restricted(image string, command ...string) corev1.PodSpec {
	spec := corev1.PodSpec{
		DNSPolicy: corev1.DNSDefault, AutomountServiceAccountToken: new(false),
		TerminationGracePeriodSeconds: new(int64(0)),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: new(true), RunAsUser: new(int64(1000)), RunAsGroup: new(int64(1000)), FSGroup: new(int64(1000)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{
			Name: "main", Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
			Env:     []corev1.EnvVar{{Name: "HOME", Value: "/home"}},
			Command: command, WorkingDir: "/workspace",
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
		}},
	}
	for name, path := range map[string]string{
		"workspace": "/workspace", "tmp": "/tmp", "var-tmp": "/var/tmp", "home": "/home",
		"results": "/large_tool_results", "history": "/conversation_history", "run": "/run", "app": "/app",
	} {
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		spec.Containers[0].VolumeMounts = append(spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path})
	}
	return spec
}

func (b *bench) waiting(ctx context.Context) (*server, error) {
	return b.claimed(ctx, "agentsandbox", restricted(b.image, "sh", "-c", "while :; do sleep 3600; done"))
}

// executeOnClaim is executeOnPod for a sandbox of agent-sandbox.
func executeOnClaim(ctx context.Context, b *bench) ([]report.Figure, error) {
	// Their rows are done.
	b.end("kubernetes-" + string(byExec))
	b.end("kubernetes-" + string(byAddress))
	s, err := b.waiting(ctx)
	if err != nil {
		return nil, err
	}
	return b.executeOn(ctx, s, "agentsandbox", b.claimPod)
}

func (b *bench) claimPod(ctx context.Context, s *server, sandbox *sandgate.Sandbox) (pod, error) {
	claim, err := b.dynamic.Resource(claims).Namespace(s.namespace).Get(ctx, sandbox.Created().GetSubstrateName(), metav1.GetOptions{})
	if err != nil {
		return pod{}, err
	}
	return podOf(claim)
}

func podOf(claim *unstructured.Unstructured) (pod, error) {
	name, found, err := unstructured.NestedString(claim.Object, "status", "sandbox", "name")
	if err != nil || !found {
		return pod{}, fmt.Errorf("claim %s names no sandbox: %w", claim.GetName(), err)
	}
	return pod{claim.GetNamespace(), name, "main"}, nil
}

// createOnClaim compares the time from Create to the end of a first `true` with a
// claim by hand on a warm pool of the same template, until it is ready, and execs.
func createOnClaim(ctx context.Context, b *bench) ([]report.Figure, error) {
	s, err := b.waiting(ctx)
	if err != nil {
		return nil, err
	}
	var ours, created, one, two report.Samples
	n := b.count(6)
	for i := range n + 1 {
		if err := b.settled(ctx, s); err != nil {
			return nil, err
		}
		took, _, remove, err := firstCommand(ctx, s, fmt.Sprintf("bench-create-%d", i))
		if err != nil {
			return nil, err
		}
		remove()
		if err := b.settled(ctx, s); err != nil {
			return nil, err
		}
		afterOne, afterTwo, err := b.plainClaim(ctx, s, fmt.Sprintf("plain-%d", i))
		if err != nil {
			return nil, err
		}
		if i > 0 {
			ours, created = append(ours, took.ended), append(created, took.created)
			one, two = append(one, afterOne), append(two, afterTwo)
		}
	}
	const what = "create → first command, agentsandbox, warm | plain claim to Ready + "
	return []report.Figure{
		report.Latency(what+"2 execs", ours, two, 0.5, report.AtMost(1), report.Bound{}),
		report.Latency(what+"1 exec", ours, one, 0.5, report.Bound{}, report.AtMost(1)),
		{What: "  of it: Create", Ours: report.Milliseconds(created.Median())},
	}, nil
}

// plainClaim claims a pod from the plain pool, and returns how long it took until
// one command and until a second one had ended.
func (b *bench) plainClaim(ctx context.Context, s *server, name string) (one, two time.Duration, err error) {
	client := b.dynamic.Resource(claims).Namespace(s.namespace)
	began := time.Now()
	if err := b.object(ctx, claims, "SandboxClaim", s.namespace, name, map[string]any{
		"warmPoolRef": map[string]any{"name": plainPool},
	}); err != nil {
		return 0, 0, err
	}
	defer func() { _ = client.Delete(ctx, name, metav1.DeleteOptions{}) }()
	events, err := client.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		return 0, 0, err
	}
	defer events.Stop()
	for event := range events.ResultChan() {
		claim, ok := event.Object.(*unstructured.Unstructured)
		if !ok || event.Type == watch.Deleted || !ready(claim) {
			continue
		}
		p, err := podOf(claim)
		if err != nil {
			return 0, 0, err
		}
		if err := b.exec(ctx, p, "true"); err != nil {
			return 0, 0, err
		}
		one = time.Since(began)
		if err := b.exec(ctx, p, "true"); err != nil {
			return 0, 0, err
		}
		return one, time.Since(began), nil
	}
	return 0, 0, fmt.Errorf("the watch of claim %s ended", name)
}

// ready reports whether a claim's sandbox is.
func ready(claim *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(claim.Object, "status", "conditions")
	for _, condition := range conditions {
		if fields, ok := condition.(map[string]any); ok && fields["type"] == "Ready" {
			return fields["status"] == "True"
		}
	}
	return false
}
