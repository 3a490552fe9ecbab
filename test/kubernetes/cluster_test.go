package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"

	"github.com/sandgate/sandgate/bench/cluster"
)

// These tests prove the cluster itself, so that a failure of a provider's test is
// the provider's.

func TestS5_32_Exec(t *testing.T) {
	t.Parallel()
	client, config := clientset(t)
	pod := pod(t, client, namespace(t, client))

	request := client.CoreV1().RESTClient().Post().Resource("pods").SubResource("exec").
		Namespace(pod.Namespace).Name(pod.Name).
		VersionedParams(&core.PodExecOptions{
			Command: []string{"sh", "-c", "cat; echo problem >&2; exit 7"},
			Stdin:   true, Stdout: true, Stderr: true,
		}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(config, "GET", request.URL().String())
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	err = executor.StreamWithContext(limit(t), remotecommand.StreamOptions{
		Stdin: strings.NewReader("input\n"), Stdout: &stdout, Stderr: &stderr,
	})
	var status exec.CodeExitError
	if !errors.As(err, &status) || status.Code != 7 {
		t.Errorf("the command ended with %v, want exit code 7", err)
	}
	if stdout.String() != "input\n" || stderr.String() != "problem\n" {
		t.Errorf("stdout %q, stderr %q", stdout.String(), stderr.String())
	}
}

func TestS1_24_WarmClaim(t *testing.T) {
	t.Parallel()
	client, config := clientset(t)
	needAgentSandbox(t, client)
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	namespace := namespace(t, client)
	create := func(resource schema.GroupVersionResource, kind string, spec map[string]any) {
		t.Helper()
		if _, err := objects.Resource(resource).Namespace(namespace).Create(limit(t), &unstructured.Unstructured{
			Object: map[string]any{
				"apiVersion": resource.GroupVersion().String(), "kind": kind,
				"metadata": map[string]any{"name": "test"}, "spec": spec,
			},
		}, meta.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create(cluster.Templates, "SandboxTemplate", map[string]any{"podTemplate": map[string]any{"spec": map[string]any{
		"dnsPolicy": "Default", "terminationGracePeriodSeconds": int64(0),
		"containers": []any{map[string]any{
			"name": "main", "image": image(), "command": []any{"sleep", "3600"},
		}},
	}}})
	create(cluster.Pools, "SandboxWarmPool", map[string]any{
		"replicas": int64(1), "sandboxTemplateRef": map[string]any{"name": "test"},
	})
	await(t, follow(t, objects, cluster.Pools, namespace),
		func(pool *unstructured.Unstructured) bool {
			ready, _, _ := unstructured.NestedInt64(pool.Object, "status", "readyReplicas")
			return ready == 1
		})

	create(cluster.Claims, "SandboxClaim", map[string]any{"warmPoolRef": map[string]any{"name": "test"}})
	claim := await(t, follow(t, objects, cluster.Claims, namespace), ready)
	sandbox, _, _ := unstructured.NestedString(claim.Object, "status", "sandbox", "name")
	// A claim that had to start its sandbox gives it its own name.
	if !strings.HasPrefix(sandbox, "test-") {
		t.Errorf("the claim got sandbox %q, want one of the pool's", sandbox)
	}
}

func TestOnlyTheStableVersionIsServed(t *testing.T) {
	t.Parallel()
	client, _ := clientset(t)
	needAgentSandbox(t, client)
	groups, err := client.Discovery().ServerGroups()
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range groups.Groups {
		if !strings.HasSuffix(group.Name, "agents.x-k8s.io") {
			continue
		}
		for _, version := range group.Versions {
			if version.Version != "v1beta1" {
				t.Errorf("%s is served", version.GroupVersion)
			}
		}
	}
}

// needAgentSandbox skips a test on a cluster without agent-sandbox.
func needAgentSandbox(t testing.TB, client kubernetes.Interface) {
	t.Helper()
	if _, err := client.Discovery().ServerResourcesForGroupVersion(cluster.Claims.GroupVersion().String()); err != nil {
		t.Skipf("needs agent-sandbox on the cluster: %v", err)
	}
}

// ready reports whether an object's condition of that name holds.
func ready(object *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, condition := range conditions {
		if fields, ok := condition.(map[string]any); ok && fields["type"] == "Ready" {
			return fields["status"] == "True"
		}
	}
	return false
}

// follow watches the objects of one kind in a namespace.
func follow(t testing.TB, client dynamic.Interface, resource schema.GroupVersionResource, namespace string) cache.ListerWatcher {
	t.Helper()
	objects := client.Resource(resource).Namespace(namespace)
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options meta.ListOptions) (runtime.Object, error) {
			return objects.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options meta.ListOptions) (watch.Interface, error) {
			return objects.Watch(ctx, options)
		},
	}
}
