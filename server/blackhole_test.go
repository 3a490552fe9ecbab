package server

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// hole is a connection that can vanish: writes are lost, reads block, and
// neither fails.
type hole struct {
	net.Conn
	mu   sync.Mutex
	gone bool
}

func (h *hole) vanish() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gone = true
}

func (h *hole) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone {
		return len(p), nil
	}
	return h.Conn.Write(p)
}

// A client whose network silently drops everything is found out in stated time,
// and the agent learns that the caller is gone.
func TestClientWithoutANetworkIsFoundOut(t *testing.T) {
	h := newHarness(t, func(c *Config) {
		c.Timing.Keepalive, c.Timing.KeepaliveTimeout = time.Second, 2*time.Second
	})
	h.provider.script.execute = hang
	h.create("a")
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- h.server.Serve(l) }()
	t.Cleanup(func() {
		_ = l.Close()
		if err := <-served; err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	var dead *hole
	conn, err := grpc.NewClient("passthrough:///hole", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			raw, err := net.Dial("unix", path)
			dead = &hole{Conn: raw}
			return dead, err
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := sandboxv1.NewSandboxServiceClient(conn).Execute(t.Context(), &sandboxv1.ExecuteRequest{SandboxId: "a",
		Command: &sandboxv1.ExecuteRequest_Shell{Shell: "x"}})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); err != nil || m.GetStarted() == nil {
		t.Fatalf("%v %v", m, err)
	}
	dead.vanish()
	select {
	case <-h.sandbox("a").agent.cancelled:
	case <-time.After(30 * time.Second):
		t.Fatal("the server still waits for a client that is gone")
	}
}
