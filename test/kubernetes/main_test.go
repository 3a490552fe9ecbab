// Package kubernetes runs against a real cluster: the one that KUBECONFIG names,
// which "make cluster-up" can start on this machine. Without KUBECONFIG its tests
// are skipped; a cluster that is named and does not answer is a failure.
package kubernetes

import (
	"context"
	"fmt"
	"hash/crc32"
	"os"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	watchtools "k8s.io/client-go/tools/watch"
)

// waitTimeout is how long a test waits for the cluster before it fails.
const waitTimeout = 2 * time.Minute

// image is one with a shell that the cluster has or can pull:
// SANDGATE_TEST_IMAGE, else the one that "make cluster-up" brings in.
func image() string {
	if image := os.Getenv("SANDGATE_TEST_IMAGE"); image != "" {
		return image
	}
	return "docker.io/sandgate/busybox:test"
}

// part picks one in n of a suite's cases, by a hash of their names and a seed,
// so that several suites leave out different ones. SANDGATE_KUBERNETES_SEED has
// them leave out others, SANDGATE_KUBERNETES=full has all of them run.
func part(t testing.TB, n uint32, seed string) func(name string) bool {
	if os.Getenv("SANDGATE_KUBERNETES") == "full" {
		return nil
	}
	seed += os.Getenv("SANDGATE_KUBERNETES_SEED")
	t.Logf("one case in %d, seed %q; SANDGATE_KUBERNETES=full runs all", n, seed)
	return func(name string) bool { return crc32.ChecksumIEEE([]byte(seed+name))%n == 0 }
}

// config is how to reach the cluster as its administrator. It skips the test when
// there is none.
func config(t testing.TB) *rest.Config {
	t.Helper()
	path := os.Getenv("KUBECONFIG")
	if path == "" {
		t.Skip("needs a cluster: run make test-kubernetes, or set KUBECONFIG")
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	return config
}

// clientset is a client of the cluster, and how it was configured. It skips the
// test when there is no cluster.
func clientset(t testing.TB) (*kubernetes.Clientset, *rest.Config) {
	t.Helper()
	config := config(t)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client, config
}

// limit is a context that ends with waitTimeout, and names the test when
// it does.
func limit(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), waitTimeout,
		fmt.Errorf("%s waited for more than %v", t.Name(), waitTimeout))
	t.Cleanup(cancel)
	return ctx
}

// namespace makes a namespace for the test alone, and deletes it after the test.
func namespace(t testing.TB, client kubernetes.Interface) string {
	t.Helper()
	made, err := client.CoreV1().Namespaces().Create(limit(t), &core.Namespace{
		ObjectMeta: meta.ObjectMeta{GenerateName: "test-"},
	}, meta.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeNamespace(t, client, made.Name) })
	// A pod is refused until its namespace has the account that it runs as.
	await(t, watcher(client, "serviceaccounts", made.Name, "default"),
		func(*core.ServiceAccount) bool { return true })
	return made.Name
}

// removeNamespace deletes a namespace, if it is there, and its pods at once: they
// have nothing to finish.
func removeNamespace(t testing.TB, client kubernetes.Interface, name string) {
	none := int64(0)
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	for _, err := range []error{
		client.CoreV1().Namespaces().Delete(ctx, name, meta.DeleteOptions{}),
		client.CoreV1().Pods(name).DeleteCollection(ctx, meta.DeleteOptions{GracePeriodSeconds: &none}, meta.ListOptions{}),
	} {
		if err != nil && !kerrors.IsNotFound(err) {
			t.Error(err)
		}
	}
}

// pod makes a pod of one container that waits, and returns it when it is ready.
// Its dnsPolicy suits a cluster without a DNS of its own.
func pod(t testing.TB, client kubernetes.Interface, namespace string) *core.Pod {
	t.Helper()
	grace := int64(0)
	made, err := client.CoreV1().Pods(namespace).Create(limit(t), &core.Pod{
		ObjectMeta: meta.ObjectMeta{GenerateName: "test-"},
		Spec: core.PodSpec{
			DNSPolicy: core.DNSDefault, RestartPolicy: core.RestartPolicyNever,
			TerminationGracePeriodSeconds: &grace,
			Containers: []core.Container{{
				Name: "main", Image: image(), Command: []string{"sleep", "3600"},
			}},
		},
	}, meta.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return await(t, watcher(client, "pods", namespace, made.Name), func(pod *core.Pod) bool {
		for _, condition := range pod.Status.Conditions {
			if condition.Type == core.PodReady {
				return condition.Status == core.ConditionTrue
			}
		}
		return false
	})
}

// watcher follows one object of the core group.
func watcher(client kubernetes.Interface, resource, namespace, name string) cache.ListerWatcher {
	return cache.NewListWatchFromClient(client.CoreV1().RESTClient(), resource, namespace,
		fields.OneTermEqualSelector("metadata.name", name))
}

// await follows objects until one is as it should be, and returns that one.
func await[T runtime.Object](t testing.TB, from cache.ListerWatcher, done func(T) bool) T {
	t.Helper()
	ctx := limit(t)
	list, err := cache.ToListerWatcherWithContext(from).ListWithContext(ctx, meta.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var last T
	found := false
	look := func(object runtime.Object) error {
		if now, ok := object.(T); ok && !found {
			last, found = now, done(now)
		}
		return nil
	}
	if err := apimeta.EachListItem(list, look); err != nil {
		t.Fatal(err)
	}
	version, err := apimeta.NewAccessor().ResourceVersion(list)
	if err != nil {
		t.Fatal(err)
	}
	if found {
		return last
	}
	if _, err := watchtools.Until(ctx, version, from, func(event watch.Event) (bool, error) {
		if event.Type == watch.Deleted {
			return false, nil
		}
		err := look(event.Object)
		return found, err
	}); err != nil {
		t.Fatalf("%v; last seen: %+v", err, last)
	}
	return last
}
