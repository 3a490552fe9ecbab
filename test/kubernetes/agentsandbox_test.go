package kubernetes

import (
	"encoding/json"
	"log/slog"
	"os"
	"testing"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/sandgate/sandgate/bench/cluster"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/agentsandbox"
	"github.com/sandgate/sandgate/providers/providertest"
)

// The resources of agent-sandbox.
var (
	sandboxTemplates = cluster.Templates
	sandboxClaims    = cluster.Claims
	sandboxPools     = cluster.Pools
	sandboxes        = cluster.Sandboxes
)

// asHarness is a test's own namespace with agent-sandbox in it.
type asHarness struct {
	t         testing.TB
	dynamic   dynamic.Interface
	pods      func() []core.Pod
	namespace string
}

func newASHarness(t testing.TB) *asHarness {
	t.Helper()
	client, config := clientset(t)
	d, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	r := &asHarness{t: t, dynamic: d, namespace: namespace(t, client)}
	r.pods = func() []core.Pod {
		list, err := client.CoreV1().Pods(r.namespace).List(limit(t), meta.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return list.Items
	}
	return r
}

// obedient waits for as long as nobody tells it to end. A shell as process 1
// hears no SIGTERM that it has no trap for.
const obedient = "trap exit TERM; while :; do sleep 3600 & wait; done"

// restricted is a pod's spec under the restricted standard.
func restricted(image string, change ...func(*core.PodSpec)) core.PodSpec {
	yes, no, user := true, false, int64(1000)
	spec := core.PodSpec{
		DNSPolicy: core.DNSDefault, AutomountServiceAccountToken: &no,
		SecurityContext: &core.PodSecurityContext{
			RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user, FSGroup: &user,
			SeccompProfile: &core.SeccompProfile{Type: core.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []core.Container{{
			Name: "main", Image: image, ImagePullPolicy: core.PullIfNotPresent,
			Env:     []core.EnvVar{{Name: "HOME", Value: "/home"}},
			Command: []string{"sh", "-c", obedient}, WorkingDir: "/workspace",
			SecurityContext: &core.SecurityContext{
				AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
				Capabilities: &core.Capabilities{Drop: []core.Capability{"ALL"}},
			},
		}},
	}
	for name, path := range map[string]string{
		"workspace": "/workspace", "tmp": "/tmp", "var-tmp": "/var/tmp", "home": "/home",
		"results": "/large_tool_results", "history": "/conversation_history", "run": "/run",
	} {
		spec.Volumes = append(spec.Volumes, core.Volume{Name: name, VolumeSource: core.VolumeSource{EmptyDir: &core.EmptyDirVolumeSource{}}})
		spec.Containers[0].VolumeMounts = append(spec.Containers[0].VolumeMounts, core.VolumeMount{Name: name, MountPath: path})
	}
	for _, c := range change {
		c(&spec)
	}
	return spec
}

// pool makes a SandboxWarmPool as an operator would, and waits until it is full.
func (r *asHarness) pool(name, template string, replicas int64) {
	r.t.Helper()
	r.make(sandboxPools, "SandboxWarmPool", name, map[string]any{
		"replicas": replicas, "sandboxTemplateRef": map[string]any{"name": template},
	})
	await(r.t, follow(r.t, r.dynamic, sandboxPools, r.namespace), func(pool *unstructured.Unstructured) bool {
		n, _, _ := unstructured.NestedInt64(pool.Object, "status", "readyReplicas")
		return pool.GetName() == name && n == replicas
	})
}

// object reads one object.
func (r *asHarness) object(resource schema.GroupVersionResource, name string) (*unstructured.Unstructured, error) {
	return r.dynamic.Resource(resource).Namespace(r.namespace).Get(limit(r.t), name, meta.GetOptions{})
}

// template makes a SandboxTemplate.
func (r *asHarness) template(name string, spec core.PodSpec, more map[string]any) {
	r.t.Helper()
	fields := map[string]any{"podTemplate": map[string]any{"spec": asFields(r.t, spec)}}
	for k, v := range more {
		fields[k] = v
	}
	r.make(sandboxTemplates, "SandboxTemplate", name, fields)
}

func (r *asHarness) make(resource schema.GroupVersionResource, kind, name string, spec map[string]any) {
	r.t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": resource.GroupVersion().String(), "kind": kind,
		"metadata": map[string]any{"name": name}, "spec": spec,
	}}
	if _, err := r.dynamic.Resource(resource).Namespace(r.namespace).Create(limit(r.t), u, meta.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

func asFields(t testing.TB, of any) map[string]any {
	t.Helper()
	data, err := json.Marshal(of)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func (r *asHarness) open(t testing.TB) *agentsandbox.Provider {
	t.Helper()
	p, err := agentsandbox.New(t.Context(), agentsandbox.Config{
		Kubeconfig: os.Getenv("KUBECONFIG"), Namespace: r.namespace,
		Agent:  func(string) ([]byte, error) { return agentBinary() },
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// asSpec is what a template with that SandboxTemplate gives.
func asSpec(options string) providers.Spec {
	return providers.Spec{
		Template: "default", Network: providers.NetworkFull, TemplateOptions: json.RawMessage(options),
	}
}

func TestAgentSandboxConformance(t *testing.T) {
	t.Parallel()
	r := newASHarness(t)
	r.template("suite", restricted(pythonImage()), map[string]any{"envVarsInjectionPolicy": "Allowed", "networkPolicyManagement": "Unmanaged"})
	providertest.Run(t, providertest.Harness{
		Open:   func(t *testing.T) providers.Provider { return r.open(t) },
		Spec:   func() providers.Spec { return asSpec(`{"sandbox_template": "suite"}`) },
		Pick:   part(t, 3, "claims"),
		Except: asExceptions,
	})
}
