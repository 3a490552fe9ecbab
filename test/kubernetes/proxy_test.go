package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
	suite "github.com/sandgate/sandgate/conformance"
	"github.com/sandgate/sandgate/conformance/goprogram/build"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/listen"
	"github.com/sandgate/sandgate/server/policy"
	"github.com/sandgate/sandgate/test/upstream"
)

// hereResolver resolves the names of the tests to this machine.
type hereResolver struct{}

func (hereResolver) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	if strings.HasSuffix(host, ".example.") || host == "example.com." {
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// proxyServer is one of the servers that share a namespace.
type proxyServer struct {
	client  *sandgate.Client
	address string
	stop    func() error
}

// proxySubstrate makes providers whose sandboxes have the network mode PROXY.
type proxySubstrate struct {
	open    func(t *testing.T) closingProvider
	options json.RawMessage      // the template's provider options
	pool    int                  // the template's
	change  func(*server.Config) // nil: none
}

type closingProvider interface {
	providers.Provider
	Close() error
}

func (s proxySubstrate) serve(t *testing.T, ports ...uint32) *proxyServer {
	t.Helper()
	provider := s.open(t)
	config := server.Config{
		Provider: provider, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), Resolver: hereResolver{}, SpecSecret: []byte("a secret of the tests"),
		Templates: []policy.Template{{Name: "default", Network: providers.NetworkProxy, ProviderOptions: s.options, Pool: s.pool, Egress: []*sandboxv1.EgressRule{
			{Hosts: []string{"*"}, Ports: append([]uint32{80, 443}, ports...)}, {Cidrs: []string{"127.0.0.0/8"}, Ports: ports},
		}}},
	}
	if s.change != nil {
		s.change(&config)
	}
	srv, err := server.New(config)
	if err != nil {
		t.Fatal(errors.Join(err, provider.Close()))
	}
	r := &proxyServer{address: "unix://" + filepath.Join(t.TempDir(), "s.sock")}
	l, err := listen.Open(t.Context(), r.address)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	if r.client, err = sandgate.NewClient(t.Context(), sandgate.WithAddress(r.address)); err != nil {
		t.Fatal(err)
	}
	stopped := false
	r.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
		defer cancel()
		return errors.Join(r.client.Close(), srv.Shutdown(ctx), <-served, provider.Close())
	}
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func sh(t *testing.T, s *sandgate.Sandbox, script string) (string, int32) {
	t.Helper()
	r, err := s.Execute(limit(t), sandgate.ExecuteRequest{Shell: "exec 2>&1\n" + script, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(r.Stdout)), r.Exit.GetExitCode()
}

// TestRawProxy holds raw pods to the network mode PROXY.
func TestRawProxy(t *testing.T) {
	t.Parallel()
	config := rawConfig(t)
	config.AgentImage = agentImage()
	proxySubstrate{open: func(t *testing.T) closingProvider { return openRaw(t, config) }}.hold(t)
}

// contentServer serves the text "content" on a port of this machine.
func contentServer(t *testing.T) uint32 {
	t.Helper()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "content") }))
	t.Cleanup(upstream.Close)
	return portOf(t, upstream.Listener.Addr().String())
}

// firstAddr returns this machine's first IPv4 address beyond loopback, which the suite
// uses as an upstream without a name.
func firstAddr(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all {
		if n, ok := one.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	t.Fatal("this machine has no IPv4 address beyond loopback")
	return ""
}

// fetching is a script that prints what a name answers at a port. It uses the proxy
// that the environment names.
func fetching(host string, port uint32) string {
	return fmt.Sprintf("wget -q -O - http://%s:%d/", host, port)
}

// withoutProxy makes a script that of a program which ignores proxies.
const withoutProxy = "unset http_proxy HTTP_PROXY; "

// allowing allows one host at a port.
func allowing(host string, port uint32) *sandgate.Network {
	return &sandgate.Network{Allow: []*sandboxv1.EgressRule{{Hosts: []string{host}, Cidrs: []string{"127.0.0.1/32"}, Ports: []uint32{port}}}}
}

// hold runs the group of cases, ordinary programs with the proxy's variables and
// without, and two servers of which one ends.
func (s proxySubstrate) hold(t *testing.T) {
	port, own := contentServer(t), uint32(freePort(t))
	certificate, trust := upstream.Trusted(t, "upstream.example")
	s.change = func(c *server.Config) {
		trust(c)
		c.Templates[0].Egress = append(c.Templates[0].Egress, &sandboxv1.EgressRule{Cidrs: []string{firstAddr(t)}, Ports: []uint32{own}})
	}
	first := s.serve(t, port, own)

	t.Run("cases", func(t *testing.T) {
		data := build.GoProgram(t)
		s, err := suite.Open(t.Context(), suite.Options{
			Address: first.address, GoProgram: data, Upstream: fmt.Sprintf("upstream.example:%d", own), UpstreamCertificate: certificate,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
			defer cancel()
			if err := s.Close(ctx); err != nil {
				t.Error(err)
			}
		})
		cases, err := suite.Filter{Group: "network"}.Choose(suite.Cases())
		if err != nil || len(cases) == 0 {
			t.Fatal(len(cases), err)
		}
		for _, one := range cases {
			t.Run(one.Name, func(t *testing.T) { s.Run(t.Context(), t, one) })
		}
	})

	info, err := first.client.ServerInfo(limit(t))
	if err != nil || !slices.ContainsFunc(info.GetEnforcement(), func(e *sandboxv1.Enforcement) bool {
		return e.GetName() == "network" && strings.Contains(e.GetDetail(), providers.AddressesNeedProxy)
	}) {
		t.Errorf("the server does not tell that pods have no local routes: %v, %v", info, err)
	}
	second := s.serve(t, port, own)
	allow := func(host string) *sandgate.Network { return allowing(host, port) }
	box, _, err := first.client.Create(limit(t), sandgate.CreateRequest{Spec: &sandgate.Spec{Network: allow("ok.example")}})
	if err != nil {
		t.Fatal(err)
	}
	id := box.ID()
	fetch := func(host string) string { return fetching(host, port) }
	for _, script := range []string{fetch("ok.example"), withoutProxy + fetch("ok.example")} {
		if got, code := sh(t, box, script); got != "content" || code != 0 {
			t.Errorf("%s: %q, exit code %d", script, got, code)
		}
	}
	if got, code := sh(t, box, fetch("other.example")); code == 0 || !strings.Contains(got, "403") {
		t.Errorf("refused: %q, exit code %d", got, code)
	}

	// comes waits until a script in the sandbox prints that, asked by the second server.
	box = second.client.Sandbox(id)
	comes := func(script, want string) time.Duration {
		t.Helper()
		for start := time.Now(); ; {
			got, _ := sh(t, box, script)
			if strings.Contains(got, want) {
				return time.Since(start)
			}
			if time.Since(start) > waitTimeout {
				t.Fatalf("%s: %q, never %q", script, got, want)
			}
		}
	}
	// Rules that the other server has changed apply, whichever carries.
	if _, err := second.client.Update(limit(t), id, sandgate.UpdateRequest{Network: allow("new.example")}); err != nil {
		t.Fatal(err)
	}
	t.Logf("new rules applied after %s", comes(fetch("new.example"), "content"))
	if got, code := sh(t, box, fetch("ok.example")); code == 0 {
		t.Errorf("the old rule: %q", got)
	}
	if err := first.stop(); err != nil {
		t.Error(err)
	}
	took := comes(fetch("new.example"), "content")
	if took > 20*time.Second {
		t.Errorf("the other server carried after %s", took)
	}
	t.Logf("the other server carried after %s", took)
	if _, err := second.client.Delete(limit(t), id); err != nil {
		t.Error(err)
	}
}
