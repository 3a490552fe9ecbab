package kubernetes

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	authorization "k8s.io/api/authorization/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// chart is an installed release of the Helm chart, and what a caller outside of
// the cluster has of it: an address, a CA and a token.
type chart struct {
	namespace, name string
	environment     []string
}

// install puts the server into the cluster with Helm, as an operator does, and
// returns when it is ready. The servers use the host's network: a small test
// cluster may have no way from pods to its API server.
func install(t *testing.T, client *kubernetes.Clientset, config *rest.Config, provider string, more ...string) chart {
	t.Helper()
	image := os.Getenv("SANDGATE_TEST_SERVER_IMAGE")
	if image == "" {
		t.Skip("needs the server's image in the cluster, by name in SANDGATE_TEST_SERVER_IMAGE: run make test-kubernetes")
	}
	repository, tag, _ := strings.Cut(image[strings.LastIndexByte(image, '/')+1:], ":")
	repository = image[:strings.LastIndexByte(image, '/')+1] + repository

	c := chart{namespace: namespace(t, client), name: "sandgate"}
	ca, certificate, key := certificates(t)
	port := freePort(t)
	token, entry := newToken(t)
	for name, data := range map[string]map[string][]byte{
		"tls":    {"tls.crt": certificate, "tls.key": key, "ca.crt": ca},
		"tokens": {"tokens": []byte("tokens:\n" + entry)},
	} {
		if _, err := client.CoreV1().Secrets(c.namespace).Create(limit(t), &core.Secret{
			ObjectMeta: meta.ObjectMeta{Name: name}, Data: data,
		}, meta.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	api, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, []byte(fmt.Sprintf(`
provider: %s
image: {repository: %s, tag: %s, pullPolicy: Never}
tls: {secretName: tls}
auth: {tokensSecretName: tokens}
replicas: 1
hostNetwork: true
containerPort: %d
resources: {requests: {cpu: 10m}}
extraEnv:
  - {name: KUBERNETES_SERVICE_HOST, value: %s}
  - {name: KUBERNETES_SERVICE_PORT, value: %q}
`, provider, repository, tag, port, api.Hostname(), api.Port())), 0o600); err != nil {
		t.Fatal(err)
	}
	helm(t, append([]string{
		"install", c.name, "../../deploy/helm/sandgate", "--namespace", c.namespace,
		"--values", values, "--wait", "--timeout", "90s",
	}, more...)...)
	t.Cleanup(func() { helm(t, "uninstall", c.name, "--namespace", c.namespace, "--wait") })

	caFile := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(caFile, ca, 0o600); err != nil {
		t.Fatal(err)
	}
	c.environment = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), // no kubeconfig, neither named nor at home
		fmt.Sprintf("SANDGATE_ADDRESS=127.0.0.1:%d", port),
		"SANDGATE_CA_FILE=" + caFile, "SANDGATE_TOKEN=" + token,
	}
	return c
}

// run runs a program as a caller outside of the cluster.
func (c chart) run(t *testing.T, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = c.environment
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", program, args, err, out)
	}
	return string(out)
}

func helm(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "helm", args...).CombinedOutput(); err != nil {
		t.Fatalf("helm %q: %v\n%s", args, err, out)
	}
}

func binary(name string) string {
	if path := os.Getenv(map[string]string{"sandgate": "SANDGATE_BIN", "sandgate-agent": "SANDGATE_AGENT_BIN"}[name]); path != "" {
		return path
	}
	path, _ := filepath.Abs("../../bin/" + name)
	return path
}

// newToken makes a token, and its entry for the tokens file.
func newToken(t *testing.T) (token, entry string) {
	t.Helper()
	cmd := exec.Command(binary("sandgate"), "token", "new", "--name", "outside")
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err, said.String())
	}
	return strings.TrimSpace(string(out)), regexp.MustCompile(`(?m)^\s+- .*$`).FindString(said.String()) + "\n"
}

// freePort is one that nobody listens at now.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// certificates makes an authority, and a certificate for this machine.
func certificates(t *testing.T) (ca, certificate, key []byte) {
	t.Helper()
	make1 := func(template, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if signer == nil {
			parent, signer = template, own
		}
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &own.PublicKey, signer)
		if err != nil {
			t.Fatal(err)
		}
		made, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return made, own
	}
	authority, signer := make1(&x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil, nil)
	leaf, own := make1(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "sandgate"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, KeyUsage: x509.KeyUsageDigitalSignature,
	}, authority, signer)
	der, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		t.Fatal(err)
	}
	block := func(kind string, der []byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	}
	return block("CERTIFICATE", authority.Raw), block("CERTIFICATE", leaf.Raw), block("PRIVATE KEY", der)
}

// TestChart installs the chart with each provider. The server has no more rights
// than its own account, and a caller no more than address, CA and token.
func TestChart(t *testing.T) {
	client, config := clientset(t)
	t.Run("S3-1 S5-2 kubernetes", func(t *testing.T) {
		c := install(t, client, config, "kubernetes", "--set", "extraArgs={--kubernetes-image=docker.io/sandgate/python:test}",
			"--set-json", `config={"templates":[{"name":"default","resources":{"memory_bytes":1073741824,"cpu_millis":1000,"disk_bytes":536870912},"provider_options":{"disk_medium":"Memory"}}]}`)
		t.Run("S1-8 S1-10 S4-3 S5-4 a command from outside", func(t *testing.T) {
			if out := c.run(t, binary("sandgate"), "run", "--", "sh", "-c", "echo out; id -u"); out != "out\n1000\n" {
				t.Errorf("%q", out)
			}
		})
		t.Run("S1-7 S3-2 S5-3 S5-30 a readable name in the namespace", func(t *testing.T) {
			id := strings.TrimSpace(c.run(t, binary("sandgate"), "create"))
			pods, err := client.CoreV1().Pods(c.namespace).List(limit(t), meta.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=sandgate"})
			if err != nil || len(pods.Items) != 1 || !strings.Contains(pods.Items[0].Name, strings.TrimPrefix(id, "sb-")) {
				t.Errorf("pods of %s: %v, %v", id, pods.Items, err)
			}
			c.run(t, binary("sandgate"), "rm", id)
		})
		t.Run("a Python agent from outside", func(t *testing.T) {
			c.run(t, "../../clients/python/.venv/bin/python", "../../examples/python/agent.py")
		})
		t.Run("conformance", func(t *testing.T) { c.conformance(t, "0.15") })
		t.Run("nothing is left", func(t *testing.T) {
			if out := c.run(t, binary("sandgate"), "ls", "--quiet"); out != "" {
				t.Errorf("sandboxes: %q", out)
			}
		})
		t.Run("S5-15 no other rights", func(t *testing.T) { noOtherRights(t, config, c) })
	})
	t.Run("S3-1 S5-2 agentsandbox", func(t *testing.T) {
		c := install(t, client, config, "agentsandbox",
			"--set-json", `config={"templates":[{"name":"default","provider_options":{"sandbox_template":"box"}}]}`)
		d, err := dynamic.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		(&asRig{t: t, dynamic: d, namespace: c.namespace}).template("box", restricted(pythonImage()), nil)
		t.Run("S1-8 S1-10 S2-8 S4-3 S5-4 a command from outside", func(t *testing.T) {
			if out := c.run(t, binary("sandgate"), "run", "--", "sh", "-c", "echo out; id -u"); out != "out\n1000\n" {
				t.Errorf("%q", out)
			}
		})
		t.Run("conformance", func(t *testing.T) { c.conformance(t, "0.08") })
		t.Run("S5-15 no other rights", func(t *testing.T) { noOtherRights(t, config, c) })
	})
}

// conformance holds the installed server to a part of the cases, which does not
// change, or to all of them.
func (c chart) conformance(t *testing.T, fraction string) {
	args := []string{"conformance", "--fraction", fraction, "--seed", "11", "--scale", "0.02"}
	if os.Getenv("SANDGATE_KUBERNETES") == "full" {
		args = []string{"conformance"}
	}
	t.Log(c.run(t, binary("sandgate"), args...))
}

// noOtherRights asks the API server what the server's account may not do.
func noOtherRights(t *testing.T, config *rest.Config, c chart) {
	own := rest.CopyConfig(config)
	own.Impersonate.UserName = "system:serviceaccount:" + c.namespace + ":" + c.name
	own.Impersonate.Groups = []string{"system:serviceaccounts", "system:serviceaccounts:" + c.namespace, "system:authenticated"}
	client, err := kubernetes.NewForConfig(own)
	if err != nil {
		t.Fatal(err)
	}
	may := func(namespace, verb, group, resource string) bool {
		group, subresource := group, ""
		resource, subresource, _ = strings.Cut(resource, "/")
		review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(limit(t), &authorization.SelfSubjectAccessReview{
			Spec: authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorization.ResourceAttributes{
				Namespace: namespace, Verb: verb, Group: group, Resource: resource, Subresource: subresource,
			}},
		}, meta.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return review.Status.Allowed
	}
	if !may(c.namespace, "create", "", "pods/exec") {
		t.Error("it may not do what it must: the questions are asked of the wrong account")
	}
	for _, no := range [][4]string{
		{c.namespace, "get", "", "secrets"}, {c.namespace, "list", "", "secrets"}, {c.namespace, "create", "", "serviceaccounts/token"},
		{c.namespace, "create", "rbac.authorization.k8s.io", "rolebindings"}, {c.namespace, "create", "", "pods/attach"},
		{c.namespace, "create", "apps", "deployments"}, {c.namespace, "delete", "networking.k8s.io", "networkpolicies"},
		{"default", "create", "", "pods"}, {"default", "create", "", "pods/exec"}, {"kube-system", "get", "", "configmaps"},
		{"", "create", "", "namespaces"}, {"", "get", "", "nodes"},
	} {
		if may(no[0], no[1], no[2], no[3]) {
			t.Errorf("it may %s %s %s in %q", no[1], no[2], no[3], no[0])
		}
	}
}
