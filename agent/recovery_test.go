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

// newQuietAgent serves an agent of this process.
func newQuietAgent(t *testing.T) (*Agent, agentv1.AgentServiceClient, *lockedBuffer) {
	t.Helper()
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
// goes on.
func TestPanicIsTheCallsError(t *testing.T) {
	a, c, log := newQuietAgent(t)
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

// A panic of what follows a command ends that command, with all its processes,
// and not the agent.
func TestPanicOfWhatFollowsACommand(t *testing.T) {
	a, c, log := newQuietAgent(t)
	mark := newMark()
	request := shell("sleep 3600." + mark + " & echo begun; read x")
	request.ExecId, request.StdinOpen = "one", true
	stream, err := c.Execute(testContext(t), &agentv1.ExecuteRequest{Request: request})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it runs", func() bool { return len(alive("3600."+mark)) > 0 })
	one, err := a.find("one")
	if err != nil {
		t.Fatal(err)
	}
	one.mu.Lock()
	oom := a.oom
	a.oom = nil
	one.mu.Unlock()
	if _, err := c.WriteStdin(testContext(t), &agentv1.WriteStdinRequest{Request: &sandboxv1.WriteStdinRequest{ExecId: "one", Data: []byte("x\n")}}); err != nil {
		t.Fatal(err)
	}
	got := collect(t, stream.Recv, 0)
	if got.exited.GetReason() != sandboxv1.ExitReason_EXIT_REASON_LOST || string(got.stdout) != "begun\n" {
		t.Errorf("ended %v, %v, %q", got.exited, got.err, got.stdout)
	}
	eventually(t, "every process is dead", func() bool { return len(alive("3600."+mark)) == 0 })
	one.mu.Lock()
	a.oom = oom
	one.mu.Unlock()
	if !strings.Contains(log.String(), "recovered from a panic") {
		t.Error("nothing was logged")
	}
	s, err := c.Execute(testContext(t), &agentv1.ExecuteRequest{Request: shell("echo well")})
	if err != nil {
		t.Fatal(err)
	}
	if r := collect(t, s.Recv, 0); string(r.stdout) != "well\n" {
		t.Errorf("after the panic: %q, %v", r.stdout, r.err)
	}
}
