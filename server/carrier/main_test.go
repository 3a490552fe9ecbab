package carrier

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/sandgate/sandgate/agent/protocol"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/egress"
	"github.com/sandgate/sandgate/server/limit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const wait = 20 * time.Second

// maxShared bounds the connections of all sandboxes of a harness.
const maxShared = 6

var key = agentconn.Key{Tenant: "default", ID: "a", Name: "sg-a"}

// agent is a sandbox's agent whose side of the streams the test plays.
type agent struct {
	agentv1.UnimplementedAgentServiceServer
	accepted chan grpc.BidiStreamingServer[agentv1.AcceptEgressRequest, agentv1.AcceptEgressResponse]
	carried  chan carried
	hangUp   chan struct{} // ends one AcceptEgress stream
	listens  bool          // as an agent does that can listen at addresses
}

// carried is a CarryEgress stream, which ends when the test closes done.
type carried struct {
	id     uint64
	stream grpc.BidiStreamingServer[agentv1.CarryEgressRequest, agentv1.CarryEgressResponse]
	done   chan struct{}
}

func (*agent) Hello(context.Context, *agentv1.HelloRequest) (*agentv1.HelloResponse, error) {
	return &agentv1.HelloResponse{AgentVersion: "test", ProtocolMinor: protocol.Minor, Incarnation: "first"}, nil
}

func (a *agent) AcceptEgress(stream grpc.BidiStreamingServer[agentv1.AcceptEgressRequest, agentv1.AcceptEgressResponse]) error {
	first := &agentv1.AcceptEgressResponse{}
	if a.listens {
		first = listening(0)
	}
	if err := stream.Send(first); err != nil {
		return err
	}
	a.accepted <- stream
	select {
	case <-a.hangUp:
	case <-stream.Context().Done():
	}
	return nil
}

func (a *agent) CarryEgress(stream grpc.BidiStreamingServer[agentv1.CarryEgressRequest, agentv1.CarryEgressResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	c := carried{first.GetConnectionId(), stream, make(chan struct{})}
	a.carried <- c
	select {
	case <-c.done:
	case <-stream.Context().Done():
	}
	return nil
}

// substrate is a provider with one sandbox.
type substrate struct {
	providers.Provider
	listener *bufconn.Listener

	mu   sync.Mutex
	info providers.Info
	gone bool
	fail error // of the next Get
}

func (p *substrate) Get(context.Context, string) (providers.Info, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.fail; err != nil {
		p.fail = nil
		return providers.Info{}, err
	}
	if p.gone {
		return providers.Info{}, providers.ErrNotFound
	}
	return p.info, nil
}

func (p *substrate) Dial(ctx context.Context, _ string) (net.Conn, error) {
	return p.listener.DialContext(ctx)
}

func (p *substrate) delete() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = true
}

// harness is a Carrier with one sandbox.
type harness struct {
	*agent
	*substrate
	carrier *Carrier
	server  *grpc.Server
	ended   chan Ended
	options []grpc.ServerOption // of the agent
}

type resolver map[string]string

func (r resolver) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	if addr, ok := r[host]; ok {
		return []netip.Addr{netip.MustParseAddr(addr)}, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

func start(t *testing.T, maxConns int, rules ...*sandboxv1.EgressRule) *harness {
	t.Helper()
	return startWith(t, func(*harness, *Config) {}, maxConns, rules...)
}

// startWith starts a Carrier with a changed configuration.
func startWith(t *testing.T, change func(*harness, *Config), maxConns int, rules ...*sandboxv1.EgressRule) *harness {
	t.Helper()
	h := &harness{
		agent: &agent{
			accepted: make(chan grpc.BidiStreamingServer[agentv1.AcceptEgressRequest, agentv1.AcceptEgressResponse], 8),
			carried:  make(chan carried, 64),
			hangUp:   make(chan struct{}),
		},
		substrate: &substrate{listener: bufconn.Listen(1 << 20), info: providers.Info{
			Name: key.Name, Incarnation: "first", State: providers.StateActive,
			Spec: providers.Spec{Tenant: key.Tenant, ID: key.ID, Network: providers.NetworkProxy, Egress: encode(t, rules)},
		}},
		ended: make(chan Ended, 1024),
	}
	shared := limit.New(maxShared)
	config := Config{
		Agents: agentconn.New(agentconn.Config{Provider: h.substrate, Version: "test", ProtocolMinor: protocol.Minor,
			MaxRequest: 1 << 20, Hello: wait, Idle: time.Minute, Small: true}),
		Policy: func(spec providers.Spec) (*egress.Policy, error) {
			var rules sandboxv1.Network
			if err := proto.Unmarshal(spec.Egress, &rules); err != nil {
				return nil, err
			}
			return egress.Compile(nil, egress.Layer{Name: "the test", Rules: rules.GetAllow()})
		},
		Authority: func(agentconn.Key, string) (*egress.Authority, error) {
			return nil, errors.New("the test has no authority")
		},
		Secrets: func(string) egress.Secrets { return nil },
		Dialer:  &egress.Dialer{Resolver: resolver{"ok.example.": "127.0.0.1"}}, MaxConns: maxConns,
		Take: func(string) bool { return shared.TryAcquire() }, Release: func(string) { shared.Release() },
		Log:    slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
		OnOpen: func() {}, OnEnd: func(e Ended) { h.ended <- e },
	}
	change(h, &config)
	h.server = grpc.NewServer(h.options...)
	agentv1.RegisterAgentServiceServer(h.server, h.agent)
	served := make(chan error, 1)
	go func() { served <- h.server.Serve(h.listener) }()
	h.carrier = New(config)
	t.Cleanup(func() {
		h.carrier.Close()
		h.carrier.Wait()
		h.server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return h
}

func encode(t *testing.T, rules []*sandboxv1.EgressRule) []byte {
	t.Helper()
	encoded, err := proto.Marshal(&sandboxv1.Network{Allow: rules})
	if err != nil {
		t.Fatal(err)
	}
	return encoded
}

// setRules changes the sandbox's rules at the provider.
func (h *harness) setRules(t *testing.T, rules ...*sandboxv1.EgressRule) providers.Info {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.info.Spec.Egress = encode(t, rules)
	return h.info
}

// hold holds the sandbox and returns the agent's stream.
func (h *harness) hold(t *testing.T) grpc.BidiStreamingServer[agentv1.AcceptEgressRequest, agentv1.AcceptEgressResponse] {
	t.Helper()
	h.carrier.Hold(key)
	return next(t, h.accepted)
}

func next[T any](t *testing.T, from chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(wait):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

func announce(t *testing.T, stream grpc.BidiStreamingServer[agentv1.AcceptEgressRequest, agentv1.AcceptEgressResponse], id uint64, host string, port uint32) {
	t.Helper()
	err := stream.Send(&agentv1.AcceptEgressResponse{Message: &agentv1.AcceptEgressResponse_Connection{
		Connection: &agentv1.EgressConnection{Id: id, Host: host, Port: port},
	}})
	if err != nil {
		t.Fatal(err)
	}
}

func refusal(t *testing.T, stream grpc.BidiStreamingServer[agentv1.AcceptEgressRequest, agentv1.AcceptEgressResponse]) *agentv1.EgressRefusal {
	t.Helper()
	m, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return m.GetRefusal()
}

// echo listens, returns what it reads, and returns its port.
func echo(t *testing.T) uint32 {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer func() { _ = c.Close() }()
				if data, err := io.ReadAll(c); err == nil {
					_, _ = c.Write(append([]byte("echo "), data...))
				}
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return uint32(l.Addr().(*net.TCPAddr).Port)
}

func allow(port uint32) *sandboxv1.EgressRule {
	return &sandboxv1.EgressRule{Hosts: []string{"*.example"}, Cidrs: []string{"127.0.0.0/8"}, Ports: []uint32{port}}
}
