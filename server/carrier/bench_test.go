package carrier

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/sandgate/sandgate/agent/protocol"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/egress"
)

// many is a substrate that has a sandbox of every name.
type many struct {
	providers.Provider
	listener *bufconn.Listener
}

func (many) Get(_ context.Context, name string) (providers.Info, error) {
	return providers.Info{Name: name, Incarnation: "first", State: providers.StateActive,
		Spec: providers.Spec{Tenant: key.Tenant, ID: name, Network: providers.NetworkProxy}}, nil
}

func (p many) Dial(ctx context.Context, _ string) (net.Conn, error) {
	return p.listener.DialContext(ctx)
}

// BenchmarkIdle prints the memory of sandboxes whose programs connect to nothing. It
// includes the far ends, whose servers have no buffers.
func BenchmarkIdle(b *testing.B) {
	const sandboxes = 200
	memory := func() uint64 {
		runtime.GC()
		runtime.GC() // Pools keep what they have for one cycle.
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapInuse + stats.StackInuse
	}
	for b.Loop() {
		before := memory()
		far := &agent{accepted: make(chan grpc.BidiStreamingServer[agentv1.AcceptEgressRequest, agentv1.AcceptEgressResponse], sandboxes)}
		p := many{listener: bufconn.Listen(1 << 10)}
		server := grpc.NewServer(grpc.ReadBufferSize(0), grpc.WriteBufferSize(0))
		agentv1.RegisterAgentServiceServer(server, far)
		go func() { _ = server.Serve(p.listener) }()
		c := New(Config{
			Agents: agentconn.New(agentconn.Config{Provider: p, Version: "test", ProtocolMinor: protocol.Minor,
				MaxRequest: 1 << 20, Hello: wait, Idle: time.Minute, Small: true}),
			Policy: func(providers.Spec) (*egress.Policy, error) { return egress.Compile(nil) },
			Log:    slog.New(slog.DiscardHandler), MaxConns: 1,
		})
		for i := range sandboxes {
			name := fmt.Sprint(i)
			c.Hold(agentconn.Key{Tenant: key.Tenant, ID: name, Name: name})
		}
		for range sandboxes {
			<-far.accepted
		}
		b.ReportMetric(float64(memory()-before)/sandboxes, "B/sandbox")
		c.Close()
		c.Wait()
		server.Stop()
	}
}
