package serve

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// served is a server in this process, on an empty cluster.
type served struct {
	t        *testing.T
	stateDir string
	client   *sandgate.Client
	stop     context.CancelCauseFunc
	// done is closed when the server has ended, then err may be read.
	done chan struct{}
	err  error

	mu     sync.Mutex
	stderr bytes.Buffer
}

func (s *served) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stderr.Write(p)
}

func (s *served) log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stderr.String()
}

// await waits until what returns true.
func (s *served) await(what string, is func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s did not come; the log: %s", what, s.log())
		}
	}
}

func (s *served) audit() string {
	text, _ := os.ReadFile(filepath.Join(s.stateDir, "audit.log"))
	return string(text)
}

// run runs "serve" with these flags to its end.
func run(ctx context.Context, stderr io.Writer, args ...string) error {
	cmd := NewCommand("dev")
	cmd.SetArgs(args)
	cmd.SetErr(stderr)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	return cmd.ExecuteContext(ctx)
}

func startServer(t *testing.T, args ...string) *served {
	t.Helper()
	kubeconfig, _ := emptyCluster(t)
	s := &served{t: t, stateDir: t.TempDir(), done: make(chan struct{})}
	socket := "unix://" + filepath.Join(s.stateDir, "s.sock")
	ctx, stop := context.WithCancelCause(t.Context())
	s.stop = stop
	go func() {
		defer close(s.done)
		s.err = run(ctx, s, append([]string{"--provider", "kubernetes", "--kubernetes-kubeconfig", kubeconfig,
			"--listen", socket, "--state-dir", s.stateDir, "--agent", writeFile(t, "agent", "agent")}, args...)...)
	}()
	t.Cleanup(func() {
		stop(nil)
		<-s.done
	})
	s.await("the start", func() bool {
		return strings.Contains(s.log(), "serves at") || strings.Contains(s.log(), `"msg":"serving"`)
	})
	client, err := sandgate.NewClient(t.Context(), sandgate.WithAddress(socket))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	s.client = client
	return s
}

func (s *served) call() {
	s.t.Helper()
	if _, err := s.client.ServerInfo(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
}

// A hangup does not end the server: records go on in a new file after the old
// one was renamed.
func TestServeReopensTheAuditLogOnHangup(t *testing.T) {
	s := startServer(t, "--log-level", "info")
	s.call()
	s.await("the first record", func() bool { return strings.Contains(s.audit(), `"phase":"ended"`) })
	old := filepath.Join(s.stateDir, "audit.log.1")
	if err := os.Rename(filepath.Join(s.stateDir, "audit.log"), old); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	s.await("the reopening", func() bool { return strings.Contains(s.log(), "audit log reopened") })
	before, err := os.ReadFile(old)
	if err != nil {
		t.Fatal(err)
	}
	s.call()
	s.await("a record in the new file", func() bool { return strings.Contains(s.audit(), `"phase":"ended"`) })
	if after, err := os.ReadFile(old); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the renamed file grew (%v)", err)
	}
	if info, err := os.Stat(filepath.Join(s.stateDir, "audit.log")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the new file: %v, %v", info, err)
	}
}

func TestServeRotatesTheAuditLogBySize(t *testing.T) {
	s := startServer(t, "--audit-max-size", "1", "--audit-max-files", "1")
	for range 2 << 20 / 500 {
		s.call()
	}
	files, err := filepath.Glob(filepath.Join(s.stateDir, "audit*.log"))
	if err != nil || len(files) < 2 {
		t.Fatalf("files %v, %v", files, err)
	}
	for _, name := range files {
		if info, err := os.Stat(name); err == nil && info.Size() > 1<<20 {
			t.Errorf("%s has %d bytes", name, info.Size())
		}
	}
}

func TestServeRefusesAnAuditFileThatItCannotWrite(t *testing.T) {
	err := run(t.Context(), io.Discard, "--state-dir", t.TempDir(), "--audit-file", t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "audit file: ") {
		t.Error(err)
	}
}
