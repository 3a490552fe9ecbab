package network

import (
	"context"
	"crypto/tls"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/conformance"
	"github.com/sandgate/sandgate/conformance/goprogram/build"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/test/upstream"
)

// TestConformance runs the group of cases about the network with each runtime.
func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name, runtime string
		profile       local.Profile
	}{{"runc", "runc", local.ProfileDefault}, {"restricted", "runc", local.ProfileRestricted}, {"gvisor", "runsc", local.ProfileDefault}} {
		t.Run(c.name, func(t *testing.T) {
			port := freePort(t)
			certificate, change := conformable(t, port)
			conform(t, startChanged(t, c.runtime, c.profile, change, port), port, certificate)
		})
	}
}

// conformable returns the upstream's certificate, and a change that makes a server trust
// it and allow this machine's own addresses at its port.
func conformable(t *testing.T, port uint32) (*tls.Certificate, func(*server.Config)) {
	t.Helper()
	certificate, trust := upstream.Trusted(t, "upstream.example")
	own, _ := ownAddrs(t)
	return certificate, func(cfg *server.Config) {
		trust(cfg)
		cfg.Templates[0].Egress = append(cfg.Templates[0].Egress, &sandboxv1.EgressRule{Cidrs: []string{own.String()}, Ports: []uint32{port}})
	}
}

// conform runs the group of cases. The suite listens at port, with a certificate that
// the server trusts for upstream.example.
func conform(t *testing.T, b *testbed, port uint32, certificate *tls.Certificate) {
	t.Helper()
	suite, err := conformance.Open(t.Context(), conformance.Options{
		Address: "unix://" + filepath.Join(b.dir, "s.sock"), GoProgram: build.GoProgram(t), Upstream: fmt.Sprintf("upstream.example:%d", port),
		UpstreamCertificate: certificate,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := suite.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	cases, err := conformance.Filter{Group: "network"}.Choose(conformance.Cases())
	if err != nil || len(cases) == 0 {
		t.Fatal(len(cases), err)
	}
	for _, one := range cases {
		t.Run(one.Name, func(t *testing.T) { suite.Run(t.Context(), t, one) })
	}
}

// TestOrdinaryProgramsReachAllowedNamesOnly: allowed names work with ordinary programs, with the proxy's
// variables and without, and others are refused.
func TestOrdinaryProgramsReachAllowedNamesOnly(t *testing.T) {
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) {
			s, ca := upstream.Site(t)
			port := portOf(s.Listener.Addr().String())
			packages := portOf(upstream.Packages(t).Listener.Addr().String())
			index := fmt.Sprintf("http://index.example:%d", packages)
			b := start(t, runtime, local.ProfileDefault, port, packages)
			box := b.create(&sandboxv1.EgressRule{Hosts: []string{"example.com", "index.example"}, Cidrs: []string{"127.0.0.1/32"}, Ports: []uint32{port, packages}})
			if _, err := box.Write(t.Context(), "/workspace/ca.pem", []byte(ca), sandgate.WriteRequest{}); err != nil {
				t.Fatal(err)
			}
			url := fmt.Sprintf("https://example.com:%d", port)
			const plain = "env -u HTTP_PROXY -u HTTPS_PROXY -u ALL_PROXY -u http_proxy -u https_proxy -u all_proxy -u NODE_USE_ENV_PROXY "
			node := `node -e 'fetch(process.argv[1]).then(r => r.text()).then(t => console.log(t.trim())).catch(e => { console.log(String(e.cause || e)); process.exit(1) })' `
			for _, c := range []struct{ name, script, want string }{
				{"curl", "curl -sS --cacert ca.pem " + url + "/site/file", "content"},
				{"curl, no proxy", plain + "curl -sS --cacert ca.pem " + url + "/site/file", "content"},
				{"curl, SOCKS", "curl -sS --cacert ca.pem -x socks5h://127.0.0.1:3128 " + url + "/site/file", "content"},
				{"git", "GIT_SSL_CAINFO=$PWD/ca.pem git clone -q " + url + "/repo.git one && cat one/file", "content"},
				{"git, no proxy", plain + "GIT_SSL_CAINFO=$PWD/ca.pem git clone -q " + url + "/repo.git two && cat two/file", "content"},
				{"node", "NODE_EXTRA_CA_CERTS=$PWD/ca.pem " + node + url + "/site/file", "content"},
				{"node, no proxy", plain + "NODE_EXTRA_CA_CERTS=$PWD/ca.pem " + node + url + "/site/file", "content"},
				{"python", `SSL_CERT_FILE=ca.pem python3 -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode().strip())' ` + url + "/site/file", "content"},
				{"pip", "pip install -q --disable-pip-version-check --no-cache-dir --retries 0 --trusted-host index.example -i " + index + "/simple/ demo && NETWORK=x demo-py", "python x"},
				{"npm", "mkdir n && cd n && npm install --silent --no-audit --no-fund --fetch-retries=0 --registry " + index + "/npm/ demo && NETWORK=x node_modules/.bin/demo-js", "node x"},
			} {
				if got, code := sh(t, box, c.script); got != c.want || code != 0 {
					t.Errorf("%s: %q, exit code %d", c.name, got, code)
				}
			}
			for _, c := range []struct{ name, script, want string }{
				{"curl", "curl -sS https://evil.example/", "response 403"},
				{"curl, no proxy", plain + "curl -sS https://evil.example/", "Could not resolve host"},
				{"curl, other port", fmt.Sprintf("curl -sS https://example.com:%d/", port+1), "response 403"},
				{"curl, address", plain + "curl -sS -m 20 https://192.0.2.7/", "connect"},
				{"git", "git clone -q https://evil.example/x", "403"},
				{"python", `python3 -c 'import urllib.request; urllib.request.urlopen("https://evil.example/")'`, `it needs hosts: ["evil.example"], ports: [443]`},
				{"node", node + "https://evil.example/", ""},
				{"pip", "pip install -q --no-cache-dir --retries 0 -i https://evil.example/simple/ demo2", "No matching distribution found"},
				{"npm", "npm view --fetch-retries=0 --registry https://evil.example/ demo", "403"},
			} {
				if got, code := sh(t, box, c.script); !strings.Contains(got, c.want) || code == 0 {
					t.Errorf("refused, %s: %q, exit code %d", c.name, got, code)
				}
			}
			refused := 0
			for len(b.audit.records) > 0 {
				r := <-b.audit.records
				if strings.HasPrefix(r.Target, "evil.example") && r.Code == "PermissionDenied" && r.SandboxID == box.ID() {
					refused++
				}
			}
			if refused == 0 {
				t.Error("no denial was recorded")
			}
		})
	}
}

var missingRule = regexp.MustCompile(`needs a rule with cidrs: \["([^"]+)"\]`)

// TestRefusalInExit: the end of a command names what the network refused meanwhile, by
// the proxy and by name, and the next command's does not.
func TestRefusalInExit(t *testing.T) {
	b := start(t, "runc", local.ProfileDefault)
	box := b.create(&sandboxv1.EgressRule{Hosts: []string{"example.com"}})
	run := func(script string) string {
		r, err := box.Execute(t.Context(), sandgate.ExecuteRequest{Shell: script, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return r.Exit.GetMessage()
	}
	got := run("curl -sS https://evil.example/; getent hosts evil.test; for i in 1 2 3 4; do curl -sS https://other$i.example/; done; true")
	for _, want := range []string{
		`the network refused programs of the sandbox: connection to evil.example:443 denied`, `hosts: ["evil.example"]`,
		"evil.test: no rule allows this name", "other1.example:443", "refused attempts: ",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q has no %q", got, want)
		}
	}
	if strings.Contains(got, "other2") {
		t.Errorf("it names more than a few: %q", got)
	}
	if got := run("true"); got != "" {
		t.Errorf("the next command: %q", got)
	}
}

// TestPipAndNpmInstallPackages installs packages from the indexes that pip and npm have by
// themselves. Where an index is not at a public address, the denial names the rule
// that is missing, which the test adds.
func TestPipAndNpmInstallPackages(t *testing.T) {
	for _, c := range []struct{ name, host, inside string }{
		{"pip", "pip download -q --no-deps --no-cache-dir -d $1 six", "pip install -q --no-cache-dir --retries 0 --target /tmp/p six && ls /tmp/p"},
		{"npm", "npm pack --pack-destination $1 is-odd", "mkdir -p n && cd n && npm install --no-audit --no-fund --fetch-retries=0 is-odd && ls node_modules"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := start(t, "runc", local.ProfileDefault)
			cmd := exec.Command("/bin/sh", "-c", "cd $1 && "+c.host, "sh", t.TempDir())
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Skipf("this machine reaches no index: %v %s", err, out)
			}
			rules := []*sandboxv1.EgressRule{{Hosts: []string{"*"}}}
			box := b.create(rules...)
			for range 4 {
				got, code := sh(t, box, c.inside)
				if code == 0 {
					return
				}
				missing := ""
				for len(b.audit.records) > 0 {
					if r := <-b.audit.records; r.Reason == "address" {
						missing = r.Target
					}
				}
				m := missingRule.FindStringSubmatch(got)
				if missing == "" && m == nil {
					t.Fatalf("exit code %d: %s", code, got)
				}
				if m == nil {
					// npm does not show the proxy's answer; curl does.
					got, _ = sh(t, box, "curl -sS -v https://"+missing+"/ 2>&1")
					if m = missingRule.FindStringSubmatch(got); m == nil {
						t.Fatalf("the denial of an address names no rule: %s", got)
					}
				}
				rules = append(rules, &sandboxv1.EgressRule{Cidrs: []string{m[1]}})
				if _, err := b.client.Update(t.Context(), box.ID(), sandgate.UpdateRequest{Network: &sandgate.Network{Allow: rules}}); err != nil {
					t.Fatal(err)
				}
			}
			t.Fatal("more rules were missing")
		})
	}
}

// fetch prints a file of the site on example.com at a port. Not every image has curl.
const fetch = `SSL_CERT_FILE=ca.pem python3 -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode().strip())' https://example.com:%d/site/file`

// TestRestartedServerCarriesFoundSandboxes: a restarted server carries the connections of the sandboxes that it
// finds. Those of the former one were reset.
func TestRestartedServerCarriesFoundSandboxes(t *testing.T) {
	s, ca := upstream.Site(t)
	port := portOf(s.Listener.Addr().String())
	restart(t, start(t, "runc", local.ProfileDefault, port), port, ca)
}

// restart restarts the server while a program has a connection to port, where the site
// with this certificate is.
func restart(t *testing.T, b *testbed, port uint32, ca string) {
	t.Helper()
	box := b.create(&sandboxv1.EgressRule{Hosts: []string{"example.com"}, Cidrs: []string{"127.0.0.1/32"}, Ports: []uint32{port}})
	if _, err := box.Write(t.Context(), "/workspace/ca.pem", []byte(ca), sandgate.WriteRequest{}); err != nil {
		t.Fatal(err)
	}
	hold := fmt.Sprintf(`python3 -c '
import socket
s = socket.create_connection(("example.com", %d))
open("open", "w").close()
try: s.recv(1); print("end")
except ConnectionResetError: print("reset")' >outcome 2>&1 &
while [ ! -e open ]; do sleep 0.05; done`, port)
	if got, code := sh(t, box, hold); code != 0 {
		t.Fatal(got)
	}
	id := box.ID()
	b.stop()
	b.serve()
	box = b.client.Sandbox(id)
	if got, code := sh(t, box, fmt.Sprintf(fetch, port)); got != "content" || code != 0 {
		t.Errorf("after the restart: %q, exit code %d", got, code)
	}
	if got, _ := sh(t, box, "i=0; while [ ! -s outcome ] && [ $i -lt 400 ]; do sleep 0.05; i=$((i+1)); done; cat outcome"); got != "reset" {
		t.Errorf("the open connection: %q", got)
	}
}

// TestPooledSandboxGetsItsRulesWithTheClaim: a sandbox of a pool gets its rules with the claim.
func TestPooledSandboxGetsItsRulesWithTheClaim(t *testing.T) {
	s, ca := upstream.Site(t)
	port := portOf(s.Listener.Addr().String())
	b := start(t, "runc", local.ProfileDefault, port)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		status, err := b.client.PoolStatus(t.Context(), "pooled")
		if err != nil || time.Now().After(deadline) {
			t.Fatal(status, err)
		}
		if status.GetAvailable() > 0 {
			break
		}
	}
	box := b.createFrom(sandgate.CreateRequest{Template: "pooled", Spec: &sandgate.Spec{Network: &sandgate.Network{
		Allow: []*sandboxv1.EgressRule{{Hosts: []string{"git.example"}, Ports: []uint32{port}}},
	}}})
	if !box.Created().GetFromPool() {
		t.Error("it is not from the pool")
	}
	if _, err := box.Write(t.Context(), "/workspace/ca.pem", []byte(ca), sandgate.WriteRequest{}); err != nil {
		t.Fatal(err)
	}
	// git.example resolves to this machine, for which there is no CIDR rule.
	for host, want := range map[string]string{"git.example": "403", "web.example": "403"} {
		if got, code := sh(t, box, fmt.Sprintf("curl -sS --cacert ca.pem https://%s:%d/", host, port)); code == 0 || !strings.Contains(got, want) {
			t.Errorf("%s: %q", host, got)
		}
	}
	if got, _ := sh(t, box, "getent hosts git.example; getent hosts web.example"); strings.Count(got, "198.18.") != 1 {
		t.Errorf("got %q", got)
	}
}
