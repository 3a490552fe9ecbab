package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sandgate/sandgate/bench/cluster"
	"github.com/sandgate/sandgate/bench/report"
	sandgate "github.com/sandgate/sandgate/clients/go"
)

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

// blueprint is a SandboxTemplate, in each namespace that needs it.
type blueprint struct {
	name string
	spec corev1.PodSpec
}

// makeTemplate makes a namespace with a SandboxTemplate of this pod.
func (b *bench) makeTemplate(ctx context.Context, p blueprint) (namespace string, err error) {
	if _, err := b.Client.Discovery().ServerResourcesForGroupVersion(cluster.Claims.GroupVersion().String()); err != nil {
		return "", &report.CannotRun{Reason: "agent-sandbox is not on the cluster: " + err.Error()}
	}
	if namespace, err = b.Namespace(ctx); err != nil {
		return "", err
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&p.spec)
	if err != nil {
		return "", err
	}
	return namespace, b.Make(ctx, cluster.Templates, "SandboxTemplate", namespace, "bench", map[string]any{
		"podTemplate": map[string]any{"spec": fields}, "networkPolicyManagement": "Unmanaged",
	})
}

// plainly returns the namespace of the plain pool of such pods.
func (b *bench) plainly(ctx context.Context, p blueprint) (string, error) {
	if namespace := b.plain[p.name]; namespace != "" {
		return namespace, nil
	}
	namespace, err := b.makeTemplate(ctx, p)
	if err != nil {
		return "", err
	}
	b.plain[p.name] = namespace
	return namespace, b.Make(ctx, cluster.Pools, "SandboxWarmPool", namespace, plainPool, map[string]any{
		"replicas": int64(poolSize), "sandboxTemplateRef": map[string]any{"name": "bench"},
	})
}

// claimed is the server whose sandboxes are claims of such pods.
func (b *bench) claimed(ctx context.Context, p blueprint, by transport) (*server, error) {
	name := serverName(p.name, by)
	if s := b.servers[name]; s != nil {
		return s, nil
	}
	namespace, err := b.makeTemplate(ctx, p)
	if err != nil {
		return nil, err
	}
	return b.serve(ctx, name, claimedPods, by, namespace, claimConfig)
}

// settled waits until the pools of both sides are full and their pods at rest, so
// that no pod starts beside what is measured.
func (b *bench) settled(ctx context.Context, plain string, servers ...*server) error {
	err := cluster.Wait(ctx, "the plain pool", func() (bool, error) {
		pool, err := b.Dynamic.Resource(cluster.Pools).Namespace(plain).Get(ctx, plainPool, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		ready, _, err := unstructured.NestedInt64(pool.Object, "status", "readyReplicas")
		return ready == poolSize, err
	})
	if err != nil {
		return err
	}
	for _, s := range servers {
		if err := s.full(ctx); err != nil {
			return err
		}
		if err := b.inhabited(ctx, s); err != nil {
			return err
		}
	}
	return rest(ctx)
}

// agentNote is what a pod of agent-sandbox carries once its agent is in it.
const agentNote = "sandgate.dev/agent"

// inhabited waits until there is an agent in each of a server's pods. A pool is
// full a moment before.
func (b *bench) inhabited(ctx context.Context, s *server) error {
	return cluster.Wait(ctx, "agents in the pods of the pool", func() (bool, error) {
		pods, err := b.Client.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		return !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool {
			return p.DeletionTimestamp == nil && p.Annotations[agentNote] == ""
		}), nil
	})
}

// rest leaves pools that are full alone for a second, in which streams to their
// pods are made.
func rest(ctx context.Context) error {
	select {
	case <-time.After(time.Second):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
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

// waiting are pods that run nothing of a peer's.
func (b *bench) waiting() blueprint {
	return blueprint{claimedPods, restricted(b.image, "sh", "-c", "while :; do sleep 3600; done")}
}

// executeOnClaim is executeOnPod for a sandbox of agent-sandbox.
func (b *bench) executeOnClaim(ctx context.Context, by transport) ([]report.Figure, error) {
	s, err := b.claimed(ctx, b.waiting(), by)
	if err != nil {
		return nil, err
	}
	if err := s.full(ctx); err != nil {
		return nil, err
	}
	return b.executeOn(ctx, s, by, claimedPods, b.claimPod)
}

func (b *bench) claimPod(ctx context.Context, s *server, sandbox *sandgate.Sandbox) (pod, error) {
	claim, err := b.Dynamic.Resource(cluster.Claims).Namespace(s.Namespace).Get(ctx, sandbox.Created().GetSubstrateName(), metav1.GetOptions{})
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
func (b *bench) createOnClaim(ctx context.Context, by transport) ([]report.Figure, error) {
	s, err := b.claimed(ctx, b.waiting(), by)
	if err != nil {
		return nil, err
	}
	plain, err := b.plainly(ctx, b.waiting())
	if err != nil {
		return nil, err
	}
	var ours, created, one, two report.Samples
	n := b.count(6)
	for i := range n + 1 {
		if err := b.settled(ctx, plain, s); err != nil {
			return nil, err
		}
		took, _, remove, err := firstCommand(ctx, s, fmt.Sprintf("bench-create-%d", i))
		if err != nil {
			return nil, err
		}
		remove()
		if err := b.settled(ctx, plain, s); err != nil {
			return nil, err
		}
		afterOne, afterTwo, err := b.plainClaim(ctx, plain, fmt.Sprintf("plain-%d", i))
		if err != nil {
			return nil, err
		}
		if i > 0 {
			ours, created = append(ours, took.ended), append(created, took.created)
			one, two = append(one, afterOne), append(two, afterTwo)
		}
	}
	what := "create → first command, " + by.of(claimedPods) + " | plain claim to Ready + "
	return []report.Figure{
		report.Latency(what+"2 execs", ours, two, 0.5, report.AtMost(1), report.Bound{}),
		report.Latency(what+"1 exec", ours, one, 0.5, report.Bound{}, report.AtMost(1)),
		{What: "  of it: Create", Ours: report.Milliseconds(created.Median())},
	}, nil
}

// plainClaim claims a pod from the plain pool, and returns how long it took until
// one command and until a second one had ended.
func (b *bench) plainClaim(ctx context.Context, namespace, name string) (one, two time.Duration, err error) {
	client := b.Dynamic.Resource(cluster.Claims).Namespace(namespace)
	began := time.Now()
	if err := b.Make(ctx, cluster.Claims, "SandboxClaim", namespace, name, map[string]any{
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
