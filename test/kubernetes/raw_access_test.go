package kubernetes

import (
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	authn "k8s.io/api/authentication/v1"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/sandgate/sandgate/providers"
	raw "github.com/sandgate/sandgate/providers/kubernetes"
)

// chartRules are what the Helm chart gives the server's account in the namespace
// of the sandboxes, with more values where they are given.
func chartRules(t *testing.T, provider string, more ...string) []rbac.PolicyRule {
	t.Helper()
	out, err := exec.CommandContext(limit(t), "helm", "template", "sandgate", "../../deploy/helm/sandgate",
		"--show-only", "templates/rbac.yaml", "--set", strings.Join(append(more, "provider="+provider+",tls.secretName=tls,auth.tokensSecretName=tokens"), ",")).Output()
	if err != nil {
		t.Fatal("helm template: ", err)
	}
	var role rbac.Role
	for _, document := range strings.Split(string(out), "\n---\n") {
		if strings.Contains(document, "kind: Role\n") {
			if err := yaml.UnmarshalStrict([]byte(document), &role); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(role.Rules) == 0 {
		t.Fatalf("the chart has no rules for %s: %s", provider, out)
	}
	return role.Rules
}

// account makes a service account with rules and returns a kubeconfig for it.
func account(t *testing.T, client *kubernetes.Clientset, namespace string, rules []rbac.PolicyRule) string {
	t.Helper()
	ctx, name := limit(t), "server-"+strings.ToLower(rand.Text())
	object := meta.ObjectMeta{Name: name}
	if _, err := client.CoreV1().ServiceAccounts(namespace).Create(ctx, &core.ServiceAccount{ObjectMeta: object}, meta.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.RbacV1().Roles(namespace).Create(ctx, &rbac.Role{ObjectMeta: object, Rules: rules}, meta.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := client.RbacV1().RoleBindings(namespace).Create(ctx, &rbac.RoleBinding{
		ObjectMeta: object, RoleRef: rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "Role", Name: name},
		Subjects: []rbac.Subject{{Kind: rbac.ServiceAccountKind, Name: name, Namespace: namespace}},
	}, meta.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	token, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authn.TokenRequest{}, meta.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	path := kubeconfigWith(t, name, namespace, token.Status.Token)
	if len(rules) > 0 {
		granted(t, path, namespace, rules)
	}
	return path
}

// kubeconfigWith is the cluster's kubeconfig with another user and namespace.
func kubeconfigWith(t *testing.T, user, namespace, token string) string {
	t.Helper()
	file, err := clientcmd.LoadFromFile(os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	file.AuthInfos = map[string]*clientcmdapi.AuthInfo{user: {Token: token}}
	for _, context := range file.Contexts {
		context.AuthInfo, context.Namespace = user, namespace
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRawAccess(t *testing.T) {
	t.Parallel()
	client, _ := clientset(t)
	open := func(t *testing.T, rules []rbac.PolicyRule) rawHarness {
		config := rawConfig(t)
		config.AgentImage = agentImage()
		config.Kubeconfig = account(t, client, config.Namespace, rules)
		config.Namespace = "" // the kubeconfig's
		p, err := raw.New(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Close() })
		return rawHarness{Provider: p, config: config, client: client}
	}
	t.Run("S3-4 S3-27 S5-15 the rules of the chart suffice", func(t *testing.T) {
		r := open(t, chartRules(t, "kubernetes"))
		spec := rawSpec("s5-15", "")
		spec.Env = map[string]string{"A": "b"}
		if err := r.KeepPools(limit(t), poolOf(1)); err != nil {
			t.Fatal(err)
		}
		pooled(t, r.Provider, "default", full)
		if info := r.made(t, "s5-15-pool", poolSpec("s5-15-pool")); !info.FromPool {
			t.Errorf("claim %+v", info)
		}
		r.made(t, "s5-15", spec)
		if got := r.shell(t, "s5-15", "echo $A"); got != "b\n" {
			t.Errorf("it says %q", got)
		}
		if _, err := r.Update(limit(t), "s5-15", providers.Change{SetLabels: map[string]string{"a": "b"}}); err != nil {
			t.Error(err)
		}
		// Whoever comes while another one creates waits for that.
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				_, conn, err := r.Create(limit(t), "s5-15-twice", rawSpec("s5-15-twice", ""))
				if err != nil {
					t.Error(err)
				}
				if conn != nil {
					_ = conn.Close()
				}
			})
		}
		both.Wait()
		if err := r.Delete(limit(t), "s5-15-twice", providers.Condition{}); err != nil {
			t.Error(err)
		}
		if page, err := r.List(limit(t), providers.Query{Limit: 10}); err != nil || len(page.Sandboxes) != 2 {
			t.Errorf("list: %+v, %v", page, err)
		}
		for _, name := range []string{"s5-15", "s5-15-pool"} {
			if err := r.Delete(limit(t), name, providers.Condition{}); err != nil {
				t.Error(err)
			}
		}
		if err := r.KeepPools(limit(t), nil); err != nil {
			t.Error(err)
		}
	})
	t.Run("S5-15 a rule that is missing is named", func(t *testing.T) {
		for _, missing := range []string{"pods", "pods/exec", "secrets", "networkpolicies"} {
			rules := chartRules(t, "kubernetes")
			for i := range rules {
				rules[i].Resources = slices.DeleteFunc(rules[i].Resources, func(r string) bool { return r == missing })
			}
			rules = slices.DeleteFunc(rules, func(r rbac.PolicyRule) bool { return len(r.Resources) == 0 })
			r := open(t, rules)
			spec := rawSpec("x", "")
			spec.Env = map[string]string{"A": "b"}
			_, _, err := r.Create(limit(t), "x", spec)
			if !errors.Is(err, providers.ErrForbidden) || !strings.Contains(err.Error(), strings.ReplaceAll(missing, "/", "")) && !strings.Contains(err.Error(), missing) {
				t.Errorf("without %s: %v", missing, err)
			}
		}
	})
	t.Run("S5-6 a token that is wrong, and a cluster that is not there", func(t *testing.T) {
		config := rawConfig(t)
		wrong := config
		wrong.Kubeconfig = kubeconfigWith(t, "nobody", config.Namespace, "no-such-token")
		if _, err := raw.New(t.Context(), wrong); !errors.Is(err, providers.ErrUnavailable) || !kerrors.IsUnauthorized(err) {
			t.Errorf("a wrong token: %v", err)
		}
		file, err := clientcmd.LoadFromFile(config.Kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range file.Clusters {
			c.Server = "https://127.0.0.1:1"
		}
		config.Kubeconfig = filepath.Join(t.TempDir(), "nowhere")
		if err := clientcmd.WriteToFile(*file, config.Kubeconfig); err != nil {
			t.Fatal(err)
		}
		if _, err := raw.New(t.Context(), config); !errors.Is(err, providers.ErrUnavailable) {
			t.Errorf("no cluster: %v", err)
		}
		config.Kubeconfig = filepath.Join(t.TempDir(), "missing")
		if _, err := raw.New(t.Context(), config); !errors.Is(err, providers.ErrInvalid) {
			t.Errorf("no kubeconfig: %v", err)
		}
	})
	t.Run("S3-9 the context that is named, not the current one", func(t *testing.T) {
		config := rawConfig(t)
		file, err := clientcmd.LoadFromFile(config.Kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		good := file.Contexts[file.CurrentContext].DeepCopy()
		good.Namespace = config.Namespace
		nowhere := file.Clusters[good.Cluster].DeepCopy()
		nowhere.Server = "https://127.0.0.1:1"
		file.Clusters["nowhere"] = nowhere
		file.Contexts = map[string]*clientcmdapi.Context{"good": good, "bad": {Cluster: "nowhere", AuthInfo: good.AuthInfo}}
		file.CurrentContext = "bad"
		config.Kubeconfig, config.Namespace = filepath.Join(t.TempDir(), "two"), "" // the context's
		if err := clientcmd.WriteToFile(*file, config.Kubeconfig); err != nil {
			t.Fatal(err)
		}
		if _, err := raw.New(t.Context(), config); !errors.Is(err, providers.ErrUnavailable) {
			t.Errorf("the current context: %v", err)
		}
		config.Context = "good"
		p := openRaw(t, config)
		defer func() { _ = p.Close() }()
		if page, err := p.List(limit(t), providers.Query{Limit: 1}); err != nil || len(page.Sandboxes) != 0 {
			t.Errorf("the named context: %+v, %v", page, err)
		}
		config.Context = "no-such-context"
		if _, err := raw.New(t.Context(), config); !errors.Is(err, providers.ErrInvalid) {
			t.Errorf("no such context: %v", err)
		}
	})
}
