package server

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/names"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// harness is a server with a scriptedProvider, and a client.
type harness struct {
	t        *testing.T
	provider *scriptedProvider
	server   *Server
	client   sandboxv1.SandboxServiceClient
	conn     *grpc.ClientConn
}

func newHarness(t *testing.T, change func(*Config), opts ...grpc.DialOption) *harness {
	t.Helper()
	h := &harness{t: t, provider: newScriptedProvider(t)}
	cfg := Config{
		Provider: h.provider,
		Logger:   slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
		Timing: Timing{Reattach: 20 * time.Second, Drain: 10 * time.Millisecond, Hello: 20 * time.Second,
			ReapInterval: time.Hour},
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	if h.server, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	l := bufconn.Listen(1 << 20)
	served := make(chan error, 1)
	go func() { served <- h.server.Serve(l) }()
	opts = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(64 << 20)),
	}, opts...)
	if h.conn, err = grpc.NewClient("passthrough:///server", opts...); err != nil {
		t.Fatal(err)
	}
	h.client = sandboxv1.NewSandboxServiceClient(h.conn)
	t.Cleanup(func() {
		h.conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := h.server.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		h.provider.stop()
	})
	return h
}

func (h *harness) create(id string) *sandboxv1.Sandbox {
	h.t.Helper()
	resp, err := h.client.CreateSandbox(h.t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: id})
	if err != nil {
		h.t.Fatal(err)
	}
	return resp.GetSandbox()
}

// sandbox returns the substrate's side of a sandbox of the tenant "default".
func (h *harness) sandbox(id string) *scriptedSandbox {
	h.t.Helper()
	h.provider.mu.Lock()
	defer h.provider.mu.Unlock()
	p, ok := h.provider.sandboxes[names.Substrate(call.DefaultTenant, id)]
	if !ok {
		h.t.Fatalf("no sandbox %q", id)
	}
	return p
}

// reason returns an error's code and reason, and fails where it has none.
func reason(t *testing.T, err error) (codes.Code, string) {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == "sandgate" {
			return status.Code(err), info.GetReason()
		}
	}
	t.Fatalf("no ErrorInfo in %v", err)
	return 0, ""
}

func metadataOf(t *testing.T, err error) map[string]string {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetMetadata()
		}
	}
	t.Fatalf("no ErrorInfo in %v", err)
	return nil
}

func wantReason(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %s", want)
	}
	if _, got := reason(t, err); got != want {
		t.Fatalf("got %v (%s), want %s", err, got, want)
	}
}

// scriptedProvider keeps sandboxes in memory, whose agents follow a script.
type scriptedProvider struct {
	t  testing.TB
	mu sync.Mutex
	// sockets is a directory for agents' unix sockets; empty: agents are
	// reached in memory.
	sockets   string
	sandboxes map[string]*scriptedSandbox
	next      int
	// script is what new agents do.
	script script
	// failGet, when set, is what Get returns.
	failGet atomic.Pointer[error]
	gets    atomic.Int32
	// failCreate, when set, is what Create returns.
	failCreate atomic.Pointer[error]
	creates    atomic.Int32
	// before, when set, is called first thing by the methods that it is named
	// for: "create", "delete", "update", "dial".
	before func(ctx context.Context, method, name string) error
}

var _ providers.Provider = (*scriptedProvider)(nil)

// scriptedSandbox is one sandbox of a scriptedProvider.
type scriptedSandbox struct {
	info   providers.Info
	agent  *scriptedAgent
	server *grpc.Server
	dial   func(context.Context) (net.Conn, error)
	dials  atomic.Int32
	mu     sync.Mutex
	conns  []net.Conn
	// dialErr, when set, is what Dial returns.
	dialErr atomic.Pointer[error]
}

func newScriptedProvider(t testing.TB) *scriptedProvider {
	return &scriptedProvider{t: t, sandboxes: make(map[string]*scriptedSandbox)}
}

func (m *scriptedProvider) begin(ctx context.Context, method, name string) error {
	if m.before == nil {
		return nil
	}
	return m.before(ctx, method, name)
}

func (m *scriptedProvider) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.sandboxes {
		p.server.Stop()
	}
}

func (m *scriptedProvider) Create(ctx context.Context, name string, spec providers.Spec) (providers.Info, net.Conn, error) {
	if err := m.failCreate.Load(); err != nil {
		return providers.Info{}, nil, *err
	}
	if err := m.begin(ctx, "create", name); err != nil {
		return providers.Info{}, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.creates.Add(1)
	if p, ok := m.sandboxes[name]; ok {
		if p.info.Spec.Hash != spec.Hash {
			return providers.Info{}, nil, fmt.Errorf("%s: %w", name, providers.ErrExists)
		}
		info := p.info
		info.Created = false
		return info, nil, nil
	}
	p := m.add(name, spec)
	conn, err := p.connect(ctx)
	return p.info, conn, err
}

// make makes a sandbox as another server does.
func (m *scriptedProvider) make(name string, spec providers.Spec) providers.Info {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.add(name, spec).info
}

func (m *scriptedProvider) add(name string, spec providers.Spec) *scriptedSandbox {
	m.next++
	p := &scriptedSandbox{info: providers.Info{
		Name: name, Spec: spec, Incarnation: fmt.Sprintf("i%d", m.next), State: providers.StateActive, Transport: "pipe",
		CreateTime: time.Now(), LastActivity: time.Now(), Created: true, Runtime: "memory",
	}}
	p.start(m.script, m.sockets)
	m.sandboxes[name] = p
	return p
}

// start runs the sandbox's agent.
func (p *scriptedSandbox) start(s script, sockets string) {
	p.agent = &scriptedAgent{script: s, incarnation: p.info.Incarnation, execs: make(map[string]bool), cancelled: make(chan struct{}, 16)}
	p.server = grpc.NewServer(grpc.ForceServerCodecV2(agentconn.NewCodec()), grpc.MaxRecvMsgSize(32<<20))
	agentv1.RegisterAgentServiceServer(p.server, p.agent)
	lis := bufconn.Listen(1 << 20)
	p.dial = lis.DialContext
	srv := p.server
	if sockets == "" {
		go func() { _ = srv.Serve(lis) }()
		return
	}
	path := filepath.Join(sockets, p.info.Incarnation)
	l, err := net.Listen("unix", path)
	if err != nil {
		panic(err)
	}
	go func() { _ = srv.Serve(l) }()
	p.dial = func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
}

// cut breaks every connection to the agent, which lives on.
func (p *scriptedSandbox) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

// remake kills the agent and starts another incarnation.
func (m *scriptedProvider) remake(p *scriptedSandbox) {
	p.server.Stop()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next++
	p.info.Incarnation = fmt.Sprintf("i%d", m.next)
	p.start(m.script, m.sockets)
}

func (m *scriptedProvider) get(name string) (*scriptedSandbox, error) {
	p, ok := m.sandboxes[name]
	if !ok {
		return nil, fmt.Errorf("%s: %w", name, providers.ErrNotFound)
	}
	return p, nil
}

func (m *scriptedProvider) Get(_ context.Context, name string) (providers.Info, error) {
	m.gets.Add(1)
	if err := m.failGet.Load(); err != nil {
		return providers.Info{}, *err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	p, err := m.get(name)
	if err != nil {
		return providers.Info{}, err
	}
	info := p.info
	info.Created = false
	return info, nil
}

func (m *scriptedProvider) List(_ context.Context, q providers.Query) (providers.Page, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var page providers.Page
	for _, name := range slices.Sorted(maps.Keys(m.sandboxes)) {
		if name <= q.Token || !q.Matches(m.sandboxes[name].info) {
			continue
		}
		if len(page.Sandboxes) == q.Limit {
			page.Next = page.Sandboxes[len(page.Sandboxes)-1].Name
			break
		}
		page.Sandboxes = append(page.Sandboxes, m.sandboxes[name].info)
	}
	return page, nil
}

func (m *scriptedProvider) Update(ctx context.Context, name string, c providers.Change) (providers.Info, error) {
	if err := m.begin(ctx, "update", name); err != nil {
		return providers.Info{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	p, err := m.get(name)
	if err != nil {
		return providers.Info{}, err
	}
	c.ApplyTo(&p.info)
	return p.info, nil
}

func (m *scriptedProvider) Delete(ctx context.Context, name string, c providers.Condition) error {
	if err := m.begin(ctx, "delete", name); err != nil {
		return err
	}
	m.mu.Lock()
	p, err := m.get(name)
	if err == nil && c.Incarnation != "" && c.Incarnation != p.info.Incarnation {
		err = providers.ErrReplaced
	}
	if err == nil && c.InUse(p.info.LastActivity) {
		err = providers.ErrInUse
	}
	if err != nil {
		m.mu.Unlock()
		return err
	}
	delete(m.sandboxes, name)
	m.mu.Unlock()
	p.server.Stop()
	return nil
}

func (m *scriptedProvider) Dial(ctx context.Context, name string) (net.Conn, error) {
	if err := m.begin(ctx, "dial", name); err != nil {
		return nil, err
	}
	m.mu.Lock()
	p, err := m.get(name)
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if err := p.dialErr.Load(); err != nil {
		p.dials.Add(1)
		return nil, *err
	}
	return p.connect(ctx)
}

// connect opens a connection to the agent.
func (p *scriptedSandbox) connect(ctx context.Context) (net.Conn, error) {
	p.dials.Add(1)
	conn, err := p.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", providers.ErrUnavailable, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, conn)
	return conn, nil
}

func (m *scriptedProvider) Describe(context.Context) (providers.Description, error) {
	return providers.Description{Name: "memory", Runtime: "memory", Enforcement: []providers.Enforcement{
		{Name: "memory", Enforced: true}, {Name: "cpu", Detail: "this is a test"},
	}}, nil
}

func (m *scriptedProvider) Close() error { return nil }
