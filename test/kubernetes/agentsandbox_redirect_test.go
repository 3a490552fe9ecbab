package kubernetes

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/conformance/goprogram/build"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/test/upstream"
)

// TestAgentSandboxRedirect holds pods to the network mode PROXY that ask the cluster's
// name server, and in which the agent may not listen at ports below 1024.
func TestAgentSandboxRedirect(t *testing.T) {
	t.Parallel()
	r := newASHarness(t)
	r.template("denied", restricted(image()), denied)
	proxied(r, `{"sandbox_template": "denied"}`, 0).hold(t)
}

// elsewhereResolver resolves every name of the tests to an address of this machine at
// which no other test listens on port 443.
type elsewhereResolver struct{}

const elsewhere = "127.77.0.1"

func (elsewhereResolver) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr(elsewhere)}, nil
}

// Ordinary programs reach an allowed name at port 443, and a refused one fails at
// once, unless the operator does not want their connects redirected.
func TestAgentSandboxRedirectsPort443(t *testing.T) {
	t.Parallel()
	certificate, trust := upstream.Trusted(t, "ok.example")
	content := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "content") })
	for _, port := range []string{":80", ":443"} {
		l, err := net.Listen("tcp", elsewhere+port)
		if err != nil {
			t.Fatal(err)
		}
		web := &http.Server{Handler: content, ReadHeaderTimeout: waitTimeout, TLSConfig: &tls.Config{Certificates: []tls.Certificate{*certificate}}}
		t.Cleanup(func() { _ = web.Close() })
		if port == ":443" {
			go func() { _ = web.ServeTLS(l, "", "") }()
		} else {
			go func() { _ = web.Serve(l) }()
		}
	}

	r := newASHarness(t)
	r.template("denied", restricted(pythonImage()), denied)
	create := func(options string) *sandgate.Sandbox {
		t.Helper()
		s := proxied(r, options, 0)
		s.change = func(c *server.Config) {
			trust(c)
			c.Resolver = elsewhereResolver{}
		}
		box, _, err := s.serve(t, 80, 443).client.Create(limit(t), sandgate.CreateRequest{Spec: &sandgate.Spec{Network: &sandgate.Network{
			Allow: []*sandboxv1.EgressRule{{Hosts: []string{"ok.example"}, Cidrs: []string{elsewhere + "/32"}, Ports: []uint32{80, 443}}},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		return box
	}
	lacksNames := func(info *sandgate.Info) bool {
		return slices.ContainsFunc(info.GetIsolation().GetNotEnforced(), func(s string) bool { return strings.HasPrefix(s, "names: ") })
	}
	const python = "env -i python3 -c '" + `
import ssl, sys, time, urllib.request
begin = time.time()
try:
    print(urllib.request.urlopen(sys.argv[1], context=ssl._create_unverified_context()).read().decode())
except OSError as e:
    print(e, "at once" if time.time() - begin < 2 else "late")
    sys.exit(1)
` + "' "

	box := create(`{"sandbox_template": "denied"}`)
	if lacksNames(box.Created()) {
		t.Errorf("%q", box.Created().GetIsolation().GetNotEnforced())
	}
	if got, code := sh(t, box, python+"https://ok.example/"); got != "content" || code != 0 {
		t.Errorf("Python: %q, exit code %d", got, code)
	}
	if got, code := sh(t, box, python+"https://no.example/"); code != 1 || !strings.Contains(got, "Name or service not known") || !strings.HasSuffix(got, "at once") {
		t.Errorf("Python: a refused name: %q, exit code %d", got, code)
	}
	data := build.GoProgram(t)
	if _, err := box.UploadFile(limit(t), sandgate.File{Path: "/workspace/goprogram", Content: bytes.NewReader(data), Mode: new(uint32(0o755))}); err != nil {
		t.Fatal(err)
	}
	got, _ := sh(t, box, "env -i ./goprogram get=ok.example:80 tcp=ok.example:443 tcp=no.example:443")
	lines := strings.Split(got, "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], "content") || !strings.HasSuffix(lines[1], "\topen") || !strings.Contains(lines[2], "no such host") {
		t.Errorf("Go: %q", lines)
	}

	box = create(`{"sandbox_template": "denied", "no_redirect": true}`)
	if !lacksNames(box.Created()) {
		t.Errorf("without a redirect: %q", box.Created().GetIsolation().GetNotEnforced())
	}
	if got, code := sh(t, box, python+"https://ok.example/"); code != 1 {
		t.Errorf("without a redirect: %q, exit code %d", got, code)
	}
}
