package agent

import (
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sandgate/sandgate/agent/protocol"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/test/daemon"
)

// newQuietAgent serves an agent of this process.
func newQuietAgent(t *testing.T) (*Agent, agentv1.AgentServiceClient, *daemon.Log) {
	t.Helper()
	log := new(daemon.Log)
	a, err := New(Config{Workdir: "/", StateDir: t.TempDir(), Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- a.Serve(l) }()
	conn, err := grpc.NewClient("unix://"+l.Addr().String(), protocol.Unconfined(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		a.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return a, agentv1.NewAgentServiceClient(conn), log
}

// A panic in a handler is an INTERNAL error of that call. The agent logs it and
// continues.
func TestPanicIsAnErrorOfTheCall(t *testing.T) {
	a, c, log := newQuietAgent(t)
	files := a.fileService
	a.fileService = nil
	defer func() { a.fileService = files }()
	ctx := metadata.AppendToOutgoingContext(testContext(t), protocol.CallIDKey, "one")
	for range 2 { // The second time, the first answer is repeated.
		if _, err := c.StatFile(ctx, &sandboxv1.StatFileRequest{Path: "/"}); status.Code(err) != codes.Internal {
			t.Errorf("a unary call: %v", err)
		}
	}
	if n := strings.Count(log.String(), "recovered from a panic"); n != 1 {
		t.Errorf("%d panics logged: %s", n, log)
	}
}
