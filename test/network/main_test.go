// Package network holds sandboxes with the network mode PROXY to what they promise,
// with a server in this process, the providers local and docker, and ordinary
// programs.
package network

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/audit"
	"github.com/sandgate/sandgate/server/listen"
	"github.com/sandgate/sandgate/server/policy"
)

// notPublic are the addresses that a package index of a company may have.
var notPublic = []string{
	"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7",
	"192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "198.18.0.0/15",
}

// resolver resolves the names of the tests to this machine, and others as usual.
type resolver struct{}

func (resolver) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	if name := strings.TrimSuffix(host, "."); name == "example.com" || strings.HasSuffix(name, ".example") {
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}
	return net.DefaultResolver.LookupNetIP(ctx, network, host)
}

// testbed is a server that can be stopped and started again.
type testbed struct {
	t    *testing.T
	dir  string
	open opener
	// options are the templates' provider options.
	options json.RawMessage
	ports   []uint32 // of upstreams on this machine
	audit   *auditLog
	change  func(*server.Config) // nil: none

	client   *sandgate.Client
	server   *server.Server
	provider substrate
	stop     func()
}

// substrate is a provider that the testbed opens and closes.
type substrate interface {
	providers.Provider
	providers.Pooler
	Close() error
}

// opener opens a provider whose records are in dir.
type opener func(ctx context.Context, dir, agent string, logger *slog.Logger) (substrate, error)

// auditLog collects records.
type auditLog struct{ records chan audit.Record }

func (a *auditLog) Audit(_ context.Context, r audit.Record) error {
	if r.Operation == "Egress" {
		select {
		case a.records <- r:
		default:
		}
	}
	return nil
}

// start starts a server with the local provider.
func start(t *testing.T, runtime string, profile local.Profile, ports ...uint32) *testbed {
	t.Helper()
	return startChanged(t, runtime, profile, nil, ports...)
}

// startChanged starts a server with a changed configuration.
func startChanged(t *testing.T, runtime string, profile local.Profile, change func(*server.Config), ports ...uint32) *testbed {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if _, err := exec.LookPath(runtime); err != nil {
		t.Skipf("needs %s", runtime)
	}
	return startWith(t, nil, change, func(ctx context.Context, dir, agent string, logger *slog.Logger) (substrate, error) {
		return local.New(ctx, local.Config{
			StateDir: filepath.Join(dir, "state"), Runtime: runtime, Profile: profile,
			Agent:        func(string) ([]byte, error) { return os.ReadFile(agent) },
			CgroupParent: "/" + filepath.Base(dir), Logger: logger,
		})
	}, ports...)
}

func startWith(t *testing.T, options json.RawMessage, change func(*server.Config), open opener, ports ...uint32) *testbed {
	t.Helper()
	dir, err := os.MkdirTemp("", "sandgate-network-")
	if err != nil {
		t.Fatal(err)
	}
	b := &testbed{t: t, dir: dir, open: open, options: options, ports: ports, audit: &auditLog{make(chan audit.Record, 4096)}, change: change}
	b.serve()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, info := range b.list(ctx) {
			if _, err := b.client.Delete(ctx, info.GetSandboxId()); err != nil {
				t.Error(err)
			}
		}
		// A closed provider leaves its pools running.
		if err := b.provider.KeepPools(ctx, nil); err != nil {
			t.Error(err)
		}
		b.stop()
		_ = os.RemoveAll(dir)
	})
	return b
}

func (b *testbed) list(ctx context.Context) []*sandgate.Info {
	page, err := b.client.ListPage(ctx, sandgate.ListRequest{})
	if err != nil {
		b.t.Error(err)
	}
	return page.Sandboxes
}

// serve starts the server, again after stop.
func (b *testbed) serve() {
	b.t.Helper()
	logger := slog.New(slog.NewTextHandler(b.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	agent := os.Getenv("SANDGATE_AGENT_BIN")
	if agent == "" {
		agent = "../../bin/sandgate-agent"
	}
	agent, err := filepath.Abs(agent)
	if err != nil {
		b.t.Fatal(err)
	}
	provider, err := b.open(b.t.Context(), b.dir, agent, logger)
	if err != nil {
		b.t.Fatal(err)
	}
	b.provider = provider
	ports := append([]uint32{80, 443}, b.ports...)
	cfg := server.Config{
		Provider: provider, Logger: logger, Audit: b.audit, Resolver: resolver{}, SpecSecret: []byte("a secret of the tests"),
		EgressGroups: map[string][]*sandboxv1.EgressRule{"tests": {{Hosts: []string{"*.example"}, Ports: ports}}},
		Templates: []policy.Template{{Name: "default", ProviderOptions: b.options, Network: providers.NetworkProxy, Egress: []*sandboxv1.EgressRule{
			{Hosts: []string{"*"}, Ports: ports}, {Cidrs: append([]string{"127.0.0.0/8"}, notPublic...), Ports: ports},
		}}, {Name: "pooled", ProviderOptions: b.options, Network: providers.NetworkProxy, Pool: 1, Egress: []*sandboxv1.EgressRule{{Group: "tests"}}}},
	}
	if b.change != nil {
		b.change(&cfg)
	}
	srv, err := server.New(cfg)
	if err != nil {
		b.t.Fatal(errors.Join(err, provider.Close()))
	}
	b.server = srv
	address := "unix://" + filepath.Join(b.dir, "s.sock")
	l, err := listen.Open(b.t.Context(), address)
	if err != nil {
		b.t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	if b.client, err = sandgate.NewClient(b.t.Context(), sandgate.WithAddress(address)); err != nil {
		b.t.Fatal(err)
	}
	b.stop = func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := errors.Join(b.client.Close(), srv.Shutdown(ctx), <-served, provider.Close()); err != nil {
			b.t.Error(err)
		}
	}
}

// create creates a sandbox with these rules.
func (b *testbed) create(rules ...*sandboxv1.EgressRule) *sandgate.Sandbox {
	b.t.Helper()
	return b.createFrom(sandgate.CreateRequest{Spec: &sandgate.Spec{Network: &sandgate.Network{Allow: rules}}})
}

func (b *testbed) createFrom(r sandgate.CreateRequest) *sandgate.Sandbox {
	b.t.Helper()
	sandbox, _, err := b.client.Create(b.t.Context(), r)
	if err != nil {
		b.t.Fatal(err)
	}
	return sandbox
}

// sh runs a shell command and returns both of its outputs.
func sh(t *testing.T, s *sandgate.Sandbox, script string) (string, int32) {
	t.Helper()
	r, err := s.Execute(t.Context(), sandgate.ExecuteRequest{Shell: "exec 2>&1\n" + script, Timeout: 2 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	code := int32(-1) // of a command that a signal or its timeout has ended
	if r.Exit.ExitCode != nil {
		code = r.Exit.GetExitCode()
	}
	return string(bytes.TrimSpace(r.Stdout)), code
}

// freePort returns a port of this machine that was free a moment ago.
func freePort(t *testing.T) uint32 {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return uint32(l.Addr().(*net.TCPAddr).Port)
}

func portOf(address string) uint32 {
	_, port, _ := net.SplitHostPort(address)
	n, _ := strconv.ParseUint(port, 10, 16)
	return uint32(n)
}
