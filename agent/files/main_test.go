package files_test

import (
	"context"
	"crypto/sha256"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sandgate/sandgate/agent/files"
	"github.com/sandgate/sandgate/agent/protocol"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is an AgentService with file calls only.
type server struct {
	rest
	*files.Service
}

// rest is one level deeper, so that the methods of files.Service win.
type rest struct {
	agentv1.UnimplementedAgentServiceServer
}

// start serves files over a unix socket.
func start(t testing.TB, cfg files.Config) (*files.Service, agentv1.AgentServiceClient) {
	t.Helper()
	svc := files.New(cfg)
	dir, err := os.MkdirTemp("", "sg") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	lis, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(grpc.MaxRecvMsgSize(8<<20), grpc.WaitForHandlers(true))
	agentv1.RegisterAgentServiceServer(srv, server{Service: svc})
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }()
	conn, err := grpc.NewClient("unix:"+socket, protocol.Unconfined(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		srv.Stop()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		svc.Close()
		if running, _ := svc.Active(); running != 0 {
			t.Errorf("%d calls still run", running)
		}
		_ = os.RemoveAll(dir)
	})
	return svc, agentv1.NewAgentServiceClient(conn)
}

// called returns the context of a call, with gRPC or without.
func called(ctx context.Context, limits *agentv1.Limits, policies ...*sandboxv1.AccessPolicy) context.Context {
	ctx, err := protocol.WithCallContext(ctx, &agentv1.CallContext{
		Confinement: &agentv1.Confinement{Policies: policies}, Limits: limits,
	})
	if err != nil {
		panic(err)
	}
	md, _ := metadata.FromOutgoingContext(ctx)
	return metadata.NewIncomingContext(ctx, md)
}

// reason returns the reason of a call's error, "" for nil.
func reason(t testing.TB, err error) string {
	t.Helper()
	if err == nil {
		return ""
	}
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			if info.GetDomain() != "sandgate" {
				t.Errorf("domain %q", info.GetDomain())
			}
			return info.GetReason()
		}
	}
	return err.Error()
}

// errorReason returns the reason of a file's error, "" for nil.
func errorReason(e *sandboxv1.FileError) string {
	if e == nil {
		return ""
	}
	return strings.TrimPrefix(e.GetReason().String(), "ERROR_REASON_")
}

func sum(b []byte) []byte {
	s := sha256.Sum256(b)
	return s[:]
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// names lists a directory, including temporary files.
func names(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := []string{}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// unprivileged reports whether the test can continue in this process. Root has all
// permissions, so as root it runs the test again as the user nobody.
func unprivileged(t *testing.T) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		return true
	}
	dir, err := os.MkdirTemp("", "sg")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "test")
	if err := os.WriteFile(program, self, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Dir = "/tmp"
	cmd.Env = []string{"TMPDIR=/tmp", "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
	return false
}
