package kubernetes

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/crypto/ssh/knownhosts"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/conformance/goprogram/build"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/test/upstream"
)

// TestPrograms: ordinary programs in pods reach allowed names and no others, with the
// proxy's variables and without. Without SANDGATE_KUBERNETES=full, some programs do, in
// one kind of pods.
func TestPrograms(t *testing.T) {
	t.Parallel()
	if os.Getenv("SANDGATE_CLUSTER") == "" {
		t.Skip("needs a cluster into which it can load an image: make test-kubernetes")
	}
	full := os.Getenv("SANDGATE_KUBERNETES") == "full"
	image := programsImage(t, full)
	kinds := []struct {
		name string
		open func(t *testing.T) proxySubstrate
	}{
		{"raw", func(t *testing.T) proxySubstrate {
			config := rawConfig(t)
			config.Image, config.AgentImage = image, agentImage()
			return proxySubstrate{open: func(t *testing.T) closingProvider { return openRaw(t, config) }}
		}},
		{"agentsandbox", func(t *testing.T) proxySubstrate {
			r := newASHarness(t)
			r.template("denied", restricted(image, asksAgent), denied)
			return proxied(r, `{"sandbox_template": "denied"}`, 0)
		}},
		{"agentsandbox, redirected", func(t *testing.T) proxySubstrate {
			r := newASHarness(t)
			r.template("denied", restricted(image), denied)
			return proxied(r, `{"sandbox_template": "denied"}`, 0)
		}},
	}
	if !full {
		i := crc32.ChecksumIEEE([]byte(os.Getenv("SANDGATE_KUBERNETES_SEED"))) % uint32(len(kinds))
		kinds = kinds[i : i+1]
	}
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			runPrograms(t, kind.open(t), full)
		})
	}
}

// programsImage brings an image with this machine's programs into the cluster.
func programsImage(t *testing.T, full bool) string {
	t.Helper()
	parts := []string{"curl", "openssh-client", "/etc/ssl/certs/ca-certificates.crt"}
	if full {
		parts = append(parts, "python3-pip", "python3-distutils", "python3-lib2to3", "python3-setuptools")
		for _, program := range []string{"node", "npm"} {
			path, err := exec.LookPath(program)
			if err != nil {
				t.Fatal(err)
			}
			parts = append(parts, path)
		}
		modules, err := exec.CommandContext(limit(t), "npm", "root", "--global").Output()
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, filepath.Join(strings.TrimSpace(string(modules)), "npm"))
	}
	dir := t.TempDir()
	root, archive := filepath.Join(dir, "root.tar"), filepath.Join(dir, "image.tar")
	out, err := os.Create(root)
	if err != nil {
		t.Fatal(err)
	}
	script := exec.CommandContext(limit(t), "../../scripts/docker-test-image.sh", parts...)
	var messages bytes.Buffer
	script.Stdout, script.Stderr = out, &messages
	if err := script.Run(); err != nil {
		t.Fatalf("%v: %s", err, &messages)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	const image = "docker.io/sandgate/programs:test"
	layer, err := tarball.LayerFromFile(root)
	if err != nil {
		t.Fatal(err)
	}
	built, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{Cmd: []string{"sh"}, Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin"}}})
	if err == nil {
		built, err = mutate.AppendLayers(built, layer)
	}
	if err == nil {
		err = tarball.WriteToFile(archive, name.MustParseReference(image), built)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(limit(t), os.Getenv("SANDGATE_CLUSTER"), "load", image+"="+archive).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return image
}

// runPrograms runs them in a pod.
func runPrograms(t *testing.T, s proxySubstrate, full bool) {
	t.Helper()
	repo := upstream.Repository(t)
	site, ca := upstream.Site(t)
	sshAddress, hostKey := upstream.ServeSSH(t, repo)
	sitePort, gitPort, sshPort := portOf(t, site.Listener.Addr().String()), portOf(t, upstream.ServeGit(t, repo)), portOf(t, sshAddress)
	ports := []uint32{sitePort, gitPort, sshPort}
	base := ""
	if full {
		index := upstream.Packages(t)
		ports = append(ports, portOf(t, index.Listener.Addr().String()))
		base = fmt.Sprintf("http://index.example:%d", ports[3])
	}
	box, _, err := s.serve(t, ports...).client.Create(limit(t), sandgate.CreateRequest{Spec: &sandgate.Spec{Network: &sandgate.Network{Allow: []*sandboxv1.EgressRule{
		{Hosts: []string{"example.com", "git.example", "index.example"}, Cidrs: []string{"127.0.0.1/32"}, Ports: ports},
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	known := knownhosts.Line([]string{fmt.Sprintf("git.example:%d", sshPort)}, hostKey) + "\n"
	for path, content := range map[string][]byte{"ca.pem": []byte(ca), "known": []byte(known), "net": build.GoProgram(t)} {
		if _, err := box.UploadFile(limit(t), sandgate.File{Path: "/workspace/" + path, Content: bytes.NewReader(content), Mode: new(uint32(0o755))}); err != nil {
			t.Fatal(err)
		}
	}
	const ssh = "ssh -F none -o BatchMode=yes -o ConnectTimeout=20 -o UserKnownHostsFile=/workspace/known "
	const plain = "env -u HTTP_PROXY -u HTTPS_PROXY -u ALL_PROXY -u http_proxy -u https_proxy -u all_proxy -u NODE_USE_ENV_PROXY "
	url := fmt.Sprintf("https://example.com:%d", sitePort)
	programs := []struct{ name, script, want string }{
		{"curl", "curl -sS --cacert ca.pem " + url + "/site/file", "content"},
		{"curl, no proxy", plain + "curl -sS --cacert ca.pem " + url + "/site/file", "content"},
		{"git", "GIT_SSL_CAINFO=$PWD/ca.pem git clone -q " + url + "/repo.git one && cat one/file", "content"},
		{"git, no proxy", plain + "GIT_SSL_CAINFO=$PWD/ca.pem git clone -q " + url + "/repo.git two && cat two/file", "content"},
		{"git's own protocol", fmt.Sprintf("git clone -q git://git.example:%d/repo.git three && cat three/file", gitPort), "content"},
		{"ssh", fmt.Sprintf(ssh+"-p %d anyone@git.example echo out", sshPort), "out"},
		{"python", `SSL_CERT_FILE=ca.pem python3 -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode().strip())' ` + url + "/site/file", "content"},
		{"a static Go program with its own dialer", fmt.Sprintf("./net tcp=example.com:%d | cut -f2", sitePort), "open"},
	}
	refused := []struct{ name, script, want string }{
		{"curl", "curl -sS https://evil.example/", "response 403"},
		{"curl, no proxy", plain + "curl -sS https://evil.example/", "Could not resolve host"},
		{"git", "git clone -q https://evil.example/x", "403"},
		{"git's own protocol", fmt.Sprintf("git clone -q git://evil.example:%d/repo.git four", gitPort), "unable to look up evil.example"},
		{"ssh", fmt.Sprintf(ssh+"-p %d anyone@evil.example echo out", sshPort), "Could not resolve hostname"},
		{"ssh, another port", fmt.Sprintf(ssh+"-p %d anyone@git.example echo out", sitePort+1), "git.example"},
		{"python", `python3 -c 'import urllib.request; urllib.request.urlopen("https://evil.example/")'`, `it needs hosts: ["evil.example"], ports: [443]`},
	}
	if full {
		node := `node -e 'fetch(process.argv[1]).then(r => r.text()).then(t => console.log(t.trim())).catch(e => { console.log(String(e.cause || e)); process.exit(1) })' `
		pip := "python3 -m pip install -q --disable-pip-version-check --no-cache-dir --retries 0 --target /tmp/p "
		npm := "npm install --silent --no-audit --no-fund --fetch-retries=0 --cache /tmp/npm "
		programs = append(programs, []struct{ name, script, want string }{
			{"node", "NODE_EXTRA_CA_CERTS=$PWD/ca.pem " + node + url + "/site/file", "content"},
			{"node, no proxy", plain + "NODE_EXTRA_CA_CERTS=$PWD/ca.pem " + node + url + "/site/file", "content"},
			{"pip", pip + "--trusted-host index.example -i " + base + "/simple/ demo && NETWORK=pod PYTHONPATH=/tmp/p python3 -c 'import demo; demo.main()'", "python pod"},
			{"npm", "mkdir -p n && cd n && " + npm + "--registry " + base + "/npm/ demo && NETWORK=pod node_modules/.bin/demo-js", "node pod"},
		}...)
		refused = append(refused, []struct{ name, script, want string }{
			{"node", node + "https://evil.example/", ""},
			{"pip", pip + "-i https://evil.example/simple/ demo", "No matching distribution found"},
			{"npm", "mkdir -p m && cd m && npm install --no-audit --no-fund --fetch-retries=0 --cache /tmp/npm --registry https://evil.example/ demo", "403"},
		}...)
	}
	const home = "export HOME=/tmp GIT_TEMPLATE_DIR=; cd /workspace; "
	for _, c := range programs {
		if got, code := sh(t, box, home+c.script); got != c.want || code != 0 {
			t.Errorf("%s: %q, exit code %d", c.name, got, code)
		}
	}
	for _, c := range refused {
		if got, code := sh(t, box, home+c.script); !strings.Contains(got, c.want) || code == 0 {
			t.Errorf("refused, %s: %q, exit code %d", c.name, got, code)
		}
	}
}

func portOf(t *testing.T, address string) uint32 {
	t.Helper()
	_, text, _ := net.SplitHostPort(address)
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(port)
}
