package kubernetes

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/agentsandbox"
	"github.com/sandgate/sandgate/providers/providertest"
)

const asExamples = "../../deploy/examples/agentsandbox"

// objectsIn reads the objects of a file.
func objectsIn(t *testing.T, path string) []*unstructured.Unstructured {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	d := yaml.NewYAMLOrJSONDecoder(file, 4096)
	var out []*unstructured.Unstructured
	for {
		u := &unstructured.Unstructured{}
		if err := d.Decode(&u.Object); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		out = append(out, u)
	}
}

var exampleResources = map[string]schema.GroupVersionResource{
	"SandboxTemplate": sandboxTemplates, "SandboxWarmPool": sandboxPools,
	"ServiceAccount": {Version: "v1", Resource: "serviceaccounts"},
	"Role":           {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"},
	"RoleBinding":    {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
}

func (r *asHarness) apply(t *testing.T, u *unstructured.Unstructured, dryRun bool) {
	t.Helper()
	resource, ok := exampleResources[u.GetKind()]
	if !ok {
		t.Fatalf("what is a %s?", u.GetKind())
	}
	opts := meta.CreateOptions{FieldValidation: meta.FieldValidationStrict}
	if dryRun {
		opts.DryRun = []string{meta.DryRunAll}
	}
	if _, err := r.dynamic.Resource(resource).Namespace(r.namespace).Create(limit(t), u, opts); err != nil {
		t.Errorf("%s %s: %v", u.GetKind(), u.GetName(), err)
	}
}

// The examples are what the API takes, to the last field.
func TestAgentSandboxExamples(t *testing.T) {
	t.Parallel()
	r := newASHarness(t)
	files, err := filepath.Glob(filepath.Join(asExamples, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range files {
		for _, u := range objectsIn(t, file) {
			r.apply(t, u, true)
		}
	}
}

// The Role of the examples is enough for all that the provider does.
func TestAgentSandboxRole(t *testing.T) {
	t.Parallel()
	r := newASHarness(t)
	r.template("plain", restricted(image()), nil)
	r.make(sandboxes, "Sandbox", "theirs", map[string]any{"podTemplate": map[string]any{"spec": asFields(t, restricted(image()))}})
	var role rbac.Role
	for _, u := range objectsIn(t, filepath.Join(asExamples, "rbac.yaml")) {
		if u.GetKind() == "Role" {
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &role); err != nil {
				t.Fatal(err)
			}
		}
		if u.GetKind() == "RoleBinding" {
			if err := unstructured.SetNestedSlice(u.Object, []any{map[string]any{
				"kind": "ServiceAccount", "name": "sandgate", "namespace": r.namespace,
			}}, "subjects"); err != nil {
				t.Fatal(err)
			}
		}
		r.apply(t, u, false)
	}
	account := impersonating(t, "system:serviceaccount:"+r.namespace+":sandgate")
	granted(t, account, r.namespace, role.Rules)
	p, err := agentsandbox.New(t.Context(), agentsandbox.Config{
		Kubeconfig: account, Namespace: r.namespace,
		Agent:  func(string) ([]byte, error) { return agentBinary() },
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	spec := asSpec(`{"sandbox_template": "plain", "existing_sandboxes": ["theirs"]}`)
	if err := p.KeepPools(limit(t), []providers.Pool{{Template: spec.Template, Spec: spec, Target: 1}}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.PoolStatus(limit(t), spec.Template); err != nil {
		t.Error(err)
	}
	info := asCreate(t, p, "one", spec)
	if out := providertest.Shell(t, p, "one", "echo works"); out != "works\n" {
		t.Errorf("%q", out)
	}
	if _, err := p.Update(limit(t), "one", providers.Change{SetLabels: map[string]string{"a": "b"}, LastActivity: info.LastActivity.Add(1)}); err != nil {
		t.Error(err)
	}
	if _, err := p.Suspend(limit(t), "one"); err != nil {
		t.Error(err)
	}
	if _, _, err := p.Resume(limit(t), "one"); err != nil {
		t.Error(err)
	}
	wrap := spec
	wrap.Options = []byte(`{"existing_sandbox": "theirs", "delete_existing": true}`)
	asCreate(t, p, "two", wrap)
	if page, err := p.List(limit(t), providers.Query{Limit: 10}); err != nil || len(page.Sandboxes) != 2 {
		t.Errorf("%+v, %v", page, err)
	}
	for _, name := range []string{"one", "two"} {
		if err := p.Delete(limit(t), name, providers.Condition{}); err != nil {
			t.Error(err)
		}
	}
	if err := p.KeepPools(limit(t), nil); err != nil {
		t.Error(err)
	}
}

// impersonating is a kubeconfig of the administrator as somebody else.
func impersonating(t *testing.T, user string) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range config.AuthInfos {
		info.Impersonate = user
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}
