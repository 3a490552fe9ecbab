package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sandgate/sandgate/providers"
	raw "github.com/sandgate/sandgate/providers/kubernetes"
	"github.com/sandgate/sandgate/providers/providertest"
)

// rawHarness is a raw provider in a namespace of the test's own, with small images.
type rawHarness struct {
	*raw.Provider
	config raw.Config
	client *kubernetes.Clientset
}

func newRawHarness(t *testing.T) rawHarness {
	t.Helper()
	config := rawConfig(t)
	config.AgentImage = agentImage()
	client, _ := clientset(t)
	r := rawHarness{Provider: openRaw(t, config), config: config, client: client}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return r
}

func rawSpec(id string, options string) providers.Spec {
	s := providers.Spec{
		Tenant: "t", ID: id, Hash: "hash of " + id, Template: "default", Network: providers.NetworkNone, Resources: raw.DefaultResources(),
	}
	if options != "" {
		s.TemplateOptions = json.RawMessage(options)
	}
	return s
}

// made creates a sandbox that goes with the test.
func (r rawHarness) made(t *testing.T, name string, spec providers.Spec) providers.Info {
	t.Helper()
	info, err := providertest.Create(limit(t), r, name, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
		defer cancel()
		if err := r.Delete(ctx, name, providers.Condition{}); err != nil && !errors.Is(err, providers.ErrNotFound) {
			t.Errorf("delete %s: %v", name, err)
		}
	})
	return info
}

func (r rawHarness) pod(t *testing.T, namespace, name string) *core.Pod {
	t.Helper()
	list, err := r.client.CoreV1().Pods(namespace).List(limit(t), meta.ListOptions{LabelSelector: "sandgate.dev/name=" + name})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("pods of %s: %d, %v", name, len(list.Items), err)
	}
	return &list.Items[0]
}

func (r rawHarness) shell(t *testing.T, name, script string) string {
	t.Helper()
	return providertest.Shell(t, r.Provider, name, script)
}

// nothingLeft fails unless the namespace has no trace of a sandbox.
func (r rawHarness) nothingLeft(t *testing.T, name string) {
	t.Helper()
	ctx, opts := limit(t), meta.ListOptions{LabelSelector: "sandgate.dev/name=" + name}
	if _, err := r.Get(ctx, name); !errors.Is(err, providers.ErrNotFound) {
		t.Errorf("get of what should be gone: %v", err)
	}
	if _, err := r.client.CoreV1().ConfigMaps(r.config.Namespace).Get(ctx, name, meta.GetOptions{}); !kerrors.IsNotFound(err) {
		t.Errorf("the record is left: %v", err)
	}
	if list, err := r.client.CoreV1().Pods(meta.NamespaceAll).List(ctx, opts); err != nil || len(list.Items) > 0 {
		t.Errorf("pods are left: %d, %v", len(list.Items), err)
	}
	if list, err := r.client.CoreV1().Secrets(r.config.Namespace).List(ctx, meta.ListOptions{}); err != nil || len(list.Items) > 0 {
		t.Errorf("secrets are left: %d, %v", len(list.Items), err)
	}
}

// open lets everybody write to a volume. One of a real storage class belongs to
// the sandbox's group; a directory of the node, as test clusters have it, does
// not.
func (r rawHarness) open(t *testing.T, claim string) {
	t.Helper()
	pods := r.client.CoreV1().Pods(r.config.Namespace)
	made, err := pods.Create(limit(t), &core.Pod{
		ObjectMeta: meta.ObjectMeta{GenerateName: "open-"},
		Spec: core.PodSpec{
			DNSPolicy: core.DNSDefault, RestartPolicy: core.RestartPolicyNever,
			Volumes: []core.Volume{{Name: "v", VolumeSource: core.VolumeSource{
				PersistentVolumeClaim: &core.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
			Containers: []core.Container{{
				Name: "main", Image: image(), Command: []string{"chmod", "0777", "/v"},
				SecurityContext: &core.SecurityContext{RunAsUser: new(int64)},
				VolumeMounts:    []core.VolumeMount{{Name: "v", MountPath: "/v"}},
			}},
		},
	}, meta.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	await(t, watcher(r.client, "pods", made.Namespace, made.Name), func(pod *core.Pod) bool { return pod.Status.Phase == core.PodSucceeded })
}

func replaceOnce(t *testing.T, text, from, to string) string {
	t.Helper()
	if strings.Count(text, from) != 1 {
		t.Fatalf("%q is not once in %q", from, text)
	}
	return strings.Replace(text, from, to, 1)
}
