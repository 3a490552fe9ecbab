package kubernetes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authn "k8s.io/api/authentication/v1"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/test/daemon"
)

// reviewer makes a service account that may ask for reviews of tokens and do nothing
// else, and returns a kubeconfig for it.
func reviewer(t *testing.T, client *kubernetes.Clientset, namespace string) string {
	t.Helper()
	path := account(t, client, namespace, nil)
	accounts, err := client.CoreV1().ServiceAccounts(namespace).List(limit(t), meta.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	binding := &rbac.ClusterRoleBinding{
		ObjectMeta: meta.ObjectMeta{GenerateName: "sandgate-test-"},
		RoleRef:    rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: "system:auth-delegator"},
	}
	for _, a := range accounts.Items {
		if strings.HasPrefix(a.Name, "server-") {
			binding.Subjects = append(binding.Subjects, rbac.Subject{Kind: rbac.ServiceAccountKind, Name: a.Name, Namespace: namespace})
		}
	}
	made, err := client.RbacV1().ClusterRoleBindings().Create(limit(t), binding, meta.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.RbacV1().ClusterRoleBindings().Delete(context.Background(), made.Name, meta.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	granted(t, path, namespace, []rbac.PolicyRule{{APIGroups: []string{authn.GroupName}, Resources: []string{"tokenreviews"}, Verbs: []string{"create"}}})
	return path
}

// A server accepts tokens of service accounts that the real API server reviews, and
// rejects one for another audience, of an account without a rule, and of an account
// that was deleted.
func TestServiceAccounts(t *testing.T) {
	t.Parallel()
	client, _ := clientset(t)
	ns := namespace(t, client)
	config := filepath.Join(t.TempDir(), "config.yaml")
	text := fmt.Sprintf("kubernetes: {kubeconfig: %q, namespace: %q, transport: exec}\nauth:\n  kubernetes:\n    audience: sandgate.test\n    kubeconfig: %q\n    accounts:\n"+
		"    - {namespace: %q, name: runner, tenant: build}\n    - {namespace: %q, name: viewer, role: reader}\n",
		os.Getenv("KUBECONFIG"), ns, reviewer(t, client, ns), ns, ns)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := daemon.Start(limit(t), daemon.Options{Program: binary("sandgate"),
		Args: []string{"--provider", "kubernetes", "--state-dir", t.TempDir(), "--config", config}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Stop() })
	conn, err := grpc.NewClient(d.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	server := sandboxv1.NewSandboxServiceClient(conn)
	token := func(name string, audiences ...string) context.Context {
		t.Helper()
		made, err := client.CoreV1().ServiceAccounts(ns).CreateToken(limit(t), name,
			&authn.TokenRequest{Spec: authn.TokenRequestSpec{Audiences: audiences}}, meta.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+made.Status.Token)
	}
	for _, name := range []string{"runner", "viewer", "other"} {
		if _, err := client.CoreV1().ServiceAccounts(ns).Create(limit(t), &core.ServiceAccount{ObjectMeta: meta.ObjectMeta{Name: name}}, meta.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	who := func(ctx context.Context) (string, error) {
		info, err := server.GetServerInfo(ctx, &sandboxv1.GetServerInfoRequest{})
		p := info.GetPrincipal()
		return strings.Join([]string{p.GetName(), p.GetTenant(), p.GetRole()}, " "), err
	}
	runner := token("runner", "sandgate.test")
	for want, ctx := range map[string]context.Context{
		"system:serviceaccount:" + ns + ":runner build user":        runner,
		"system:serviceaccount:" + ns + ":viewer " + ns + " reader": token("viewer", "x", "sandgate.test"),
	} {
		if got, err := who(ctx); got != want || err != nil {
			t.Errorf("got %q %v, want %q", got, err, want)
		}
	}
	for name, c := range map[string]struct {
		ctx  context.Context
		want string
	}{
		"other audience": {token("runner", "x"), "Unauthenticated"}, "the API server's": {token("runner"), "Unauthenticated"},
		"no rule": {token("other", "sandgate.test"), "PermissionDenied"},
	} {
		if _, err := who(c.ctx); status.Code(err).String() != c.want {
			t.Errorf("%s: got %v", name, err)
		}
	}
	_, err = server.CreateSandbox(token("viewer", "sandgate.test"), &sandboxv1.CreateSandboxRequest{})
	if status.Code(err).String() != "PermissionDenied" {
		t.Errorf("a reader creates: %v", err)
	}
	if err := client.CoreV1().ServiceAccounts(ns).Delete(limit(t), "runner", meta.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	deleted := time.Now()
	for {
		_, err := who(runner)
		if status.Code(err).String() == "Unauthenticated" {
			break
		}
		if time.Since(deleted) > time.Minute {
			t.Fatalf("the token of a deleted account counts: %v", err)
		}
		time.Sleep(time.Second)
	}
}
