package kubernetes

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authn "k8s.io/api/authentication/v1"
	core "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sandgate/sandgate/providers"
	raw "github.com/sandgate/sandgate/providers/kubernetes"
)

// TestRawNamespaceAccess gives a server the rights and the admission policies
// that the chart has for namespaces per sandbox.
func TestRawNamespaceAccess(t *testing.T) {
	t.Parallel()
	client, admin := clientset(t)
	config := rawConfig(t)
	config.AgentImage = agentImage()
	release := namespace(t, client)
	config.Kubeconfig = wideAccount(t, client, admin, release, config.Namespace)
	own := clientOf(t, config.Kubeconfig)
	foreign := namespace(t, client)
	// The API server takes a moment to know new rules and a new policy.
	refused := func(what string, try func() error) {
		t.Helper()
		for ctx := limit(t); ; {
			err := try()
			if err != nil && strings.Contains(err.Error(), "ValidatingAdmissionPolicy '"+release+"-sandgate") {
				return
			}
			select {
			case <-ctx.Done():
				t.Fatalf("%s: %v", what, err)
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	dry := meta.CreateOptions{DryRun: []string{meta.DryRunAll}}
	refused("a pod in another namespace", func() error {
		_, err := own.CoreV1().Pods(foreign).Create(limit(t), &core.Pod{
			ObjectMeta: meta.ObjectMeta{Name: "x"},
			Spec:       core.PodSpec{Containers: []core.Container{{Name: "main", Image: image()}}},
		}, dry)
		return err
	})
	refused("a command in a pod of another namespace", func() error {
		return own.CoreV1().RESTClient().Post().Namespace(foreign).Resource("pods").Name("x").SubResource("exec").
			Param("command", "true").Param("stdout", "true").Do(limit(t)).Error()
	})
	refused("a secret in another namespace", func() error {
		_, err := own.CoreV1().Secrets(foreign).Create(limit(t), &core.Secret{ObjectMeta: meta.ObjectMeta{Name: "x"}}, dry)
		return err
	})
	refused("the deletion of another namespace", func() error {
		return own.CoreV1().Namespaces().Delete(limit(t), foreign, meta.DeleteOptions{DryRun: []string{meta.DryRunAll}})
	})
	refused("a namespace without the standard", func() error {
		_, err := own.CoreV1().Namespaces().Create(limit(t), &core.Namespace{ObjectMeta: meta.ObjectMeta{
			Name: foreign + "-x", Labels: map[string]string{"app.kubernetes.io/managed-by": "sandgate", "sandgate.dev/kind": "sandbox"},
		}}, dry)
		return err
	})

	// What no admission policy needs to refuse, since the ClusterRole has no rule for it.
	if !may(t, own, "", "create", "", "namespaces") {
		t.Error("it may not do what it must: the questions are asked of the wrong account")
	}
	for _, no := range [][4]string{
		{"", "get", "", "nodes"}, {"", "create", "", "persistentvolumes"}, {"", "impersonate", "", "users"},
		{"", "create", "rbac.authorization.k8s.io", "clusterrolebindings"}, {"", "escalate", "rbac.authorization.k8s.io", "clusterroles"},
		{"", "delete", "admissionregistration.k8s.io", "validatingadmissionpolicies"},
		{"", "delete", "admissionregistration.k8s.io", "validatingadmissionpolicybindings"},
		{foreign, "list", "", "secrets"}, {foreign, "create", "", "serviceaccounts/token"}, {foreign, "create", "", "pods/attach"},
		{foreign, "create", "rbac.authorization.k8s.io", "rolebindings"}, {foreign, "create", "apps", "deployments"},
		{foreign, "update", "", "configmaps"}, {"kube-system", "get", "", "configmaps"},
	} {
		if may(t, own, no[0], no[1], no[2], no[3]) {
			t.Errorf("it may %s %s %s in %q", no[1], no[2], no[3], no[0])
		}
	}

	p, err := raw.New(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	r := rawHarness{Provider: p, config: config, client: client}
	name := "own-" + config.Namespace
	spec := rawSpec("own", `{"namespace_per_sandbox": true, "namespace_quota": {"pods": "1"}}`)
	spec.Env = map[string]string{"A": "b"}
	r.made(t, name, spec)
	if got := r.shell(t, name, "echo $A"); got != "b\n" {
		t.Errorf("it says %q", got)
	}
	if err := r.Delete(limit(t), name, providers.Condition{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Namespaces().Get(limit(t), name, meta.GetOptions{}); !kerrors.IsNotFound(err) {
		t.Errorf("the namespace is left: %v", err)
	}
}

func clientOf(t *testing.T, kubeconfig string) *kubernetes.Clientset {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// wideAccount makes what the chart has of accounts, rules and admission policies
// for a release in a namespace and its sandboxes in another one, and returns a
// kubeconfig of the server's account.
func wideAccount(t *testing.T, client *kubernetes.Clientset, admin *rest.Config, release, sandboxes string) string {
	t.Helper()
	out, err := exec.CommandContext(limit(t), "helm", "template", "sandgate", "../../deploy/helm/sandgate", "--namespace", release,
		"--show-only", "templates/rbac.yaml", "--show-only", "templates/admission.yaml", "--show-only", "templates/serviceaccount.yaml",
		"--set", "tls.secretName=tls,auth.tokensSecretName=tokens",
		"--set", "sandboxes.namespacePerSandbox=true,sandboxes.createNamespace=false,sandboxes.namespace="+sandboxes).Output()
	if err != nil {
		t.Fatal("helm template: ", err)
	}
	path := filepath.Join(t.TempDir(), "chart.yaml")
	if err := os.WriteFile(path, out, 0o600); err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(admin)
	if err != nil {
		t.Fatal(err)
	}
	groups, err := restmapper.GetAPIGroupResources(client.Discovery())
	if err != nil {
		t.Fatal(err)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	for _, u := range objectsIn(t, path) {
		if u.Object == nil {
			continue
		}
		kind := u.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			t.Fatal(err)
		}
		all := objects.Resource(mapping.Resource).Namespace(u.GetNamespace())
		if _, err := all.Create(limit(t), u, meta.CreateOptions{FieldValidation: meta.FieldValidationStrict}); err != nil {
			t.Fatalf("%s %s: %v", u.GetKind(), u.GetName(), err)
		}
		if u.GetNamespace() == "" {
			t.Cleanup(func() {
				if err := all.Delete(context.Background(), u.GetName(), meta.DeleteOptions{}); err != nil {
					t.Error(err)
				}
			})
		}
	}
	token, err := client.CoreV1().ServiceAccounts(release).CreateToken(limit(t), "sandgate", &authn.TokenRequest{}, meta.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return kubeconfigWith(t, "sandgate", sandboxes, token.Status.Token)
}
