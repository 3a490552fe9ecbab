package egress

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/sandgate/sandgate/agent/payload"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
)

// agent is a Service with calls.
type agent struct {
	agentv1.UnimplementedAgentServiceServer
	*Service
}

func (a agent) AcceptEgress(s grpc.BidiStreamingServer[agentv1.AcceptEgressRequest, agentv1.AcceptEgressResponse]) error {
	return a.Service.AcceptEgress(s)
}
func (a agent) CarryEgress(s carryStream) error { return a.Service.CarryEgress(s) }

// start returns a service that listens on free ports, and a client of its calls.
func start(t *testing.T, attach time.Duration) (*Service, agentv1.AgentServiceClient) {
	t.Helper()
	return startWith(t, Config{Enabled: true, Proxy: freeAddress(t), NameServer: freeAddress(t), AttachTime: attach})
}

func startWith(t testing.TB, config Config) (*Service, agentv1.AgentServiceClient) {
	t.Helper()
	config.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	s, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer(grpc.ForceServerCodecV2(payload.Codec{}))
	agentv1.RegisterAgentServiceServer(server, agent{Service: s})
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///agent", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		s.Close()
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s, agentv1.NewAgentServiceClient(conn)
}

// freeAddress returns a loopback address whose port was free a moment ago.
func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// noAnswer has an upstream say nothing about an announced connection.
const noAnswer = "no answer"

// upstream is the server's side: it allows names, and dials an address of the test
// for each.
type upstream struct {
	client agentv1.AgentServiceClient
	dials  map[string]string // HOST:PORT to address, or noAnswer

	mu    sync.Mutex
	asked []string
	sent  sync.Mutex
	carry sync.WaitGroup
}

// attach serves announcements until the test ends or detach is called.
func (u *upstream) attach(t testing.TB) (detach func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := u.client.AcceptEgress(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	u.carry.Go(func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			switch m := m.GetMessage().(type) {
			case *agentv1.AcceptEgressResponse_Question:
				u.note(m.Question.GetHost())
				u.send(stream, &agentv1.AcceptEgressRequest{Message: &agentv1.AcceptEgressRequest_Answer{
					Answer: &agentv1.EgressAnswer{Id: m.Question.GetId(), Ports: u.ports(m.Question.GetHost())},
				}})
			case *agentv1.AcceptEgressResponse_Connection:
				u.carry.Go(func() { u.connect(ctx, stream, m.Connection) })
			}
		}
	})
	detach = func() {
		cancel()
		u.carry.Wait()
	}
	t.Cleanup(detach)
	return detach
}

func (u *upstream) send(stream grpc.BidiStreamingClient[agentv1.AcceptEgressRequest, agentv1.AcceptEgressResponse], m *agentv1.AcceptEgressRequest) {
	u.sent.Lock()
	defer u.sent.Unlock()
	_ = stream.Send(m)
}

func (u *upstream) note(s string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.asked = append(u.asked, s)
}

func (u *upstream) ports(host string) []uint32 {
	var ports []uint32
	for target := range u.dials {
		if h, port, _ := net.SplitHostPort(target); h == host {
			n, _ := strconv.Atoi(port)
			ports = append(ports, uint32(n))
		}
	}
	return ports
}

func (u *upstream) connect(ctx context.Context, stream grpc.BidiStreamingClient[agentv1.AcceptEgressRequest, agentv1.AcceptEgressResponse], c *agentv1.EgressConnection) {
	target := net.JoinHostPort(c.GetHost(), strconv.Itoa(int(c.GetPort())))
	u.note(target)
	refuse := func(reason agentv1.EgressRefusalReason) {
		u.send(stream, &agentv1.AcceptEgressRequest{Message: &agentv1.AcceptEgressRequest_Refusal{
			Refusal: &agentv1.EgressRefusal{Id: c.GetId(), Reason: reason, Message: "no rule for " + target},
		}})
	}
	address, ok := u.dials[target]
	if !ok {
		refuse(agentv1.EgressRefusalReason_EGRESS_REFUSAL_REASON_DENIED)
		return
	}
	if address == noAnswer {
		return
	}
	remote, err := net.Dial("tcp", address)
	if err != nil {
		refuse(agentv1.EgressRefusalReason_EGRESS_REFUSAL_REASON_UNREACHABLE)
		return
	}
	defer func() { _ = remote.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = remote.Close() })
	defer stop()
	carry, err := u.client.CarryEgress(ctx)
	if err != nil {
		return
	}
	_ = carry.Send(&agentv1.CarryEgressRequest{Payload: &agentv1.CarryEgressRequest_ConnectionId{ConnectionId: c.GetId()}})
	u.carry.Go(func() {
		buffer := make([]byte, 4096)
		for {
			n, err := remote.Read(buffer)
			if n > 0 {
				_ = carry.Send(&agentv1.CarryEgressRequest{Payload: &agentv1.CarryEgressRequest_Data{Data: buffer[:n]}})
			}
			if errors.Is(err, io.EOF) {
				_ = carry.Send(&agentv1.CarryEgressRequest{Payload: &agentv1.CarryEgressRequest_Eof{Eof: &agentv1.EgressEof{}}})
			}
			if err != nil {
				return
			}
		}
	})
	for {
		m, err := carry.Recv()
		if err != nil {
			return
		}
		if m.GetEof() != nil {
			_ = remote.(*net.TCPConn).CloseWrite()
			continue
		}
		_, _ = remote.Write(m.GetData())
	}
}

// echo listens and returns what it reads, after the end of its input.
func echo(t *testing.T) string {
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
				data, err := io.ReadAll(c)
				if err == nil {
					_, _ = c.Write(append([]byte("echo "), data...))
				}
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return l.Addr().String()
}
