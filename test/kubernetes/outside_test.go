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

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// installed is a server in the cluster, and what a caller outside of it has: an
// address, a CA and a token. The server uses the host's network: a small test
// cluster may have no way from pods to its API server.
type installed struct {
	namespace, name string
	// sandboxes is the namespace of the sandboxes.
	sandboxes   string
	image       string
	port        int
	environment []string
	// config is the server's configuration file, where a test writes one.
	config string
	// api is where the server finds the API server.
	api []core.EnvVar
}

// prepare makes a namespace with the secrets that a server needs there.
func prepare(t *testing.T, client *kubernetes.Clientset, config *rest.Config) installed {
	t.Helper()
	image := os.Getenv("SANDGATE_TEST_SERVER_IMAGE")
	if image == "" {
		t.Skip("needs the server's image in the cluster, by name in SANDGATE_TEST_SERVER_IMAGE: run make test-kubernetes")
	}
	i := installed{namespace: namespace(t, client), name: "sandgate", image: image, port: freePort(t)}
	i.sandboxes = i.namespace + "-sandboxes"
	t.Cleanup(func() { removeNamespace(t, client, i.sandboxes) })
	ca, certificate, key := certificates(t)
	token, entry := newToken(t)
	for name, data := range map[string]map[string][]byte{
		"sandgate-tls":    {"tls.crt": certificate, "tls.key": key, "ca.crt": ca},
		"sandgate-tokens": {"tokens": []byte("tokens:\n" + entry)},
	} {
		if _, err := client.CoreV1().Secrets(i.namespace).Create(limit(t), &core.Secret{
			ObjectMeta: meta.ObjectMeta{Name: name}, Data: data,
		}, meta.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	api, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	i.api = []core.EnvVar{
		{Name: "KUBERNETES_SERVICE_HOST", Value: api.Hostname()}, {Name: "KUBERNETES_SERVICE_PORT", Value: api.Port()},
	}
	caFile := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(caFile, ca, 0o600); err != nil {
		t.Fatal(err)
	}
	i.environment = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), // no kubeconfig, neither named nor at home
		fmt.Sprintf("SANDGATE_ADDRESS=127.0.0.1:%d", i.port),
		"SANDGATE_CA_FILE=" + caFile, "SANDGATE_TOKEN=" + token,
	}
	return i
}

// python is the interpreter that has the client.
const python = "../../clients/python/.venv/bin/python"

// run runs a program as a caller outside of the cluster.
func (i installed) run(t *testing.T, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*waitTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = i.environment
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", program, args, err, out)
	}
	return string(out)
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
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "sandgate"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"sandgate"},
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
