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
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a server over an in-memory provider whose agents are scripted.
type world struct {
	t        *testing.T
	provider *memory
	server   *Server
	client   sandboxv1.SandboxServiceClient
	conn     *grpc.ClientConn
}

func newWorld(t *testing.T, change func(*Config), opts ...grpc.DialOption) *world {
	t.Helper()
	w := &world{t: t, provider: newMemory(t)}
	cfg := Config{
		Provider: w.provider,
		Logger:   slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
		Timing: Timing{Reattach: 20 * time.Second, Drain: 10 * time.Millisecond, Hello: 20 * time.Second,
			ReapInterval: time.Hour},
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	if w.server, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	l := bufconn.Listen(1 << 20)
	served := make(chan error, 1)
	go func() { served <- w.server.Serve(l) }()
	opts = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(64 << 20)),
	}, opts...)
	if w.conn, err = grpc.NewClient("passthrough:///server", opts...); err != nil {
		t.Fatal(err)
	}
	w.client = sandboxv1.NewSandboxServiceClient(w.conn)
	t.Cleanup(func() {
		w.conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := w.server.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		w.provider.stop()
	})
	return w
}

func (w *world) create(id string) *sandboxv1.Sandbox {
	w.t.Helper()
	resp, err := w.client.CreateSandbox(w.t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: id})
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.GetSandbox()
}

// place returns the substrate's side of a sandbox of the tenant "default".
func (w *world) place(id string) *place {
	w.t.Helper()
	w.provider.mu.Lock()
	defer w.provider.mu.Unlock()
	p, ok := w.provider.places[substrateName(defaultTenant, id)]
	if !ok {
		w.t.Fatalf("no sandbox %q", id)
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

// memory is a provider in memory.
type memory struct {
	t  testing.TB
	mu sync.Mutex
	// sockets is a directory for agents' unix sockets; empty: agents are
	// reached in memory.
	sockets string
	places  map[string]*place
	next    int
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

var _ providers.Provider = (*memory)(nil)

// place is one sandbox.
type place struct {
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

func newMemory(t testing.TB) *memory {
	return &memory{t: t, places: make(map[string]*place)}
}

func (m *memory) begin(ctx context.Context, method, name string) error {
	if m.before == nil {
		return nil
	}
	return m.before(ctx, method, name)
}

func (m *memory) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.places {
		p.server.Stop()
	}
}

func (m *memory) Create(ctx context.Context, name string, spec providers.Spec) (providers.Info, net.Conn, error) {
	if err := m.failCreate.Load(); err != nil {
		return providers.Info{}, nil, *err
	}
	if err := m.begin(ctx, "create", name); err != nil {
		return providers.Info{}, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.creates.Add(1)
	if p, ok := m.places[name]; ok {
		if p.info.Spec.Hash != spec.Hash {
			return providers.Info{}, nil, fmt.Errorf("%s: %w", name, providers.ErrExists)
		}
		info := p.info
		info.Created = false
		return info, nil, nil
	}
	p := m.place(name, spec)
	conn, err := p.connect(ctx)
	return p.info, conn, err
}

// make makes a sandbox as another server does.
func (m *memory) make(name string, spec providers.Spec) providers.Info {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.place(name, spec).info
}

func (m *memory) place(name string, spec providers.Spec) *place {
	m.next++
	p := &place{info: providers.Info{
		Name: name, Spec: spec, Incarnation: fmt.Sprintf("i%d", m.next), State: providers.StateActive, Transport: "pipe",
		CreateTime: time.Now(), LastActivity: time.Now(), Created: true, Runtime: "memory",
	}}
	p.start(m.script, m.sockets)
	m.places[name] = p
	return p
}

// start runs the place's agent.
func (p *place) start(s script, sockets string) {
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
func (p *place) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

// remake kills the agent and starts another incarnation.
func (m *memory) remake(p *place) {
	p.server.Stop()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next++
	p.info.Incarnation = fmt.Sprintf("i%d", m.next)
	p.start(m.script, m.sockets)
}

func (m *memory) get(name string) (*place, error) {
	p, ok := m.places[name]
	if !ok {
		return nil, fmt.Errorf("%s: %w", name, providers.ErrNotFound)
	}
	return p, nil
}

func (m *memory) Get(_ context.Context, name string) (providers.Info, error) {
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

func (m *memory) List(_ context.Context, q providers.Query) (providers.Page, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var page providers.Page
	for _, name := range slices.Sorted(maps.Keys(m.places)) {
		if name <= q.Token || !q.Matches(m.places[name].info) {
			continue
		}
		if len(page.Sandboxes) == q.Limit {
			page.Next = page.Sandboxes[len(page.Sandboxes)-1].Name
			break
		}
		page.Sandboxes = append(page.Sandboxes, m.places[name].info)
	}
	return page, nil
}

func (m *memory) Update(ctx context.Context, name string, c providers.Change) (providers.Info, error) {
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

func (m *memory) Delete(ctx context.Context, name string, c providers.Condition) error {
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
	delete(m.places, name)
	m.mu.Unlock()
	p.server.Stop()
	return nil
}

func (m *memory) Dial(ctx context.Context, name string) (net.Conn, error) {
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
func (p *place) connect(ctx context.Context) (net.Conn, error) {
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

func (m *memory) Describe(context.Context) (providers.Description, error) {
	return providers.Description{Name: "memory", Runtime: "memory", Enforcement: []providers.Enforcement{
		{Name: "memory", Enforced: true}, {Name: "cpu", Detail: "this is a test"},
	}}, nil
}

func (m *memory) Close() error { return nil }
