package providertest

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sandgate/sandgate/agent/protocol"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	"github.com/sandgate/sandgate/providers"
)

// connect makes a gRPC connection to a sandbox's agent.
func connect(t *testing.T, p providers.Provider, name string) *grpc.ClientConn {
	t.Helper()
	return connectBy(t, func(ctx context.Context, _ string) (net.Conn, error) { return p.Dial(ctx, name) })
}

func connectBy(t *testing.T, dial func(context.Context, string) (net.Conn, error)) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///agent", protocol.Unconfined(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dial))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// hello dials, has the agent introduce itself, and hangs up.
func hello(ctx context.Context, t *testing.T, p providers.Provider, name string) *agentv1.HelloResponse {
	t.Helper()
	return helloOn(ctx, t, connect(t, p, name))
}

// helloOver has the agent introduce itself over a connection, and closes that.
func helloOver(ctx context.Context, t *testing.T, raw net.Conn) *agentv1.HelloResponse {
	t.Helper()
	return helloOn(ctx, t, connectBy(t, func(context.Context, string) (net.Conn, error) { return raw, nil }))
}

func helloOn(ctx context.Context, t *testing.T, conn *grpc.ClientConn) *agentv1.HelloResponse {
	t.Helper()
	defer func() { _ = conn.Close() }()
	resp, err := agentv1.NewAgentServiceClient(conn).Hello(ctx, &agentv1.HelloRequest{ServerVersion: "dev", ProtocolMinor: 1})
	if err != nil {
		t.Fatalf("hello: %v", err)
	}
	return resp
}

func incarnationIsTheAgents(ctx context.Context, t *testing.T, b *box) {
	name := name(t)
	info := b.create(ctx, t, name, b.spec(name))
	if got := hello(ctx, t, b.p, name).GetIncarnation(); got != info.Incarnation {
		t.Errorf("the agent says %q, the provider %q", got, info.Incarnation)
	}
}

func dialMany(ctx context.Context, t *testing.T, b *box) {
	name := name(t)
	info := b.create(ctx, t, name, b.spec(name))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			conn := connect(t, b.p, name)
			defer func() { _ = conn.Close() }()
			for range 5 {
				got, err := agentv1.NewAgentServiceClient(conn).Hello(ctx, &agentv1.HelloRequest{ServerVersion: "dev", ProtocolMinor: 1})
				if err != nil || got.GetIncarnation() != info.Incarnation {
					t.Errorf("hello: %v, %v", got, err)
				}
			}
		})
	}
	wg.Wait()
}

// closeDoesNotDisturb also holds the raw connection to what net.Conn promises.
func closeDoesNotDisturb(ctx context.Context, t *testing.T, b *box) {
	name := name(t)
	info := b.create(ctx, t, name, b.spec(name))
	kept := connect(t, b.p, name)
	defer func() { _ = kept.Close() }()
	client := agentv1.NewAgentServiceClient(kept)
	ask := func() {
		t.Helper()
		got, err := client.Hello(ctx, &agentv1.HelloRequest{ServerVersion: "dev", ProtocolMinor: 1})
		if err != nil || got.GetIncarnation() != info.Incarnation {
			t.Fatalf("hello: %v, %v", got, err)
		}
	}
	ask()
	for range 3 {
		raw, err := b.p.Dial(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		if err := raw.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
			t.Errorf("set a deadline: %v", err)
		}
		var netErr net.Error
		if _, err := raw.Read(make([]byte, 1)); !errors.As(err, &netErr) || !netErr.Timeout() {
			t.Errorf("read after the deadline: %v", err)
		}
		if err := raw.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if _, err := raw.Write([]byte("x")); err == nil {
			t.Error("write after close succeeded")
		}
		ask()
	}
	if now, err := b.p.Get(ctx, name); err != nil || now.State != providers.StateActive {
		t.Errorf("afterwards it is %+v, %v", now, err)
	}
}

func deleteWithOpenConnections(ctx context.Context, t *testing.T, b *box) {
	name := name(t)
	b.create(ctx, t, name, b.spec(name))
	var open []net.Conn
	for range 3 {
		conn, err := b.p.Dial(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		open = append(open, conn)
	}
	if err := b.p.Delete(ctx, name, providers.Condition{}); err != nil {
		t.Fatal(err)
	}
	for i, conn := range open {
		if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		// What the agent had said before may still be read; then it must end.
		var netErr net.Error
		if _, err := io.Copy(io.Discard, conn); errors.As(err, &netErr) && netErr.Timeout() {
			t.Errorf("connection %d outlives its sandbox", i)
		}
	}
}
