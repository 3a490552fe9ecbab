package agent

import (
	"bytes"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// lockedBuffer is a log that may be read meanwhile.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// A panic in a handler is an INTERNAL error of that call. The agent logs it and
// goes on.
func TestPanicIsTheCallsError(t *testing.T) {
	log := &lockedBuffer{}
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
	conn, err := grpc.NewClient("unix://"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = conn.Close()
		a.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	c := agentv1.NewAgentServiceClient(conn)

	files, oom := a.Service, a.oom
	a.Service, a.oom = nil, nil
	ctx := metadata.AppendToOutgoingContext(testContext(t), CallIDKey, "one")
	for range 2 { // The second time, the first answer is repeated.
		if _, err := c.StatFile(ctx, &agentv1.StatFileRequest{Request: &sandboxv1.StatFileRequest{Path: "/"}}); status.Code(err) != codes.Internal {
			t.Errorf("a unary call: %v", err)
		}
	}
	if n := strings.Count(log.String(), "recovered from a panic"); n != 1 {
		t.Errorf("%d panics logged: %s", n, log)
	}
	request := shell("echo well")
	request.ExecId = "one"
	execute := func() ([]byte, error) {
		s, err := c.Execute(testContext(t), &agentv1.ExecuteRequest{Request: request})
		if err != nil {
			t.Fatal(err)
		}
		r := collect(t, s.Recv, 0)
		return r.stdout, r.err
	}
	var joined sync.WaitGroup
	for range 3 { // Whoever joins is not left waiting.
		joined.Go(func() {
			if _, err := execute(); status.Code(err) != codes.Internal {
				t.Errorf("a stream: %v", err)
			}
		})
	}
	joined.Wait()
	a.Service, a.oom = files, oom
	if out, err := execute(); err != nil || string(out) != "well\n" {
		t.Errorf("after the panics: %q, %v", out, err)
	}
}
