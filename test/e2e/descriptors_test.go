package e2e

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// stubs returns a client that repeats nothing.
func (s *server) stubs(t *testing.T) sandboxv1.SandboxServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(s.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return sandboxv1.NewSandboxServiceClient(conn)
}

// wantError checks the code and the reason of an error.
func wantError(t *testing.T, what string, err error, code codes.Code, reason string) {
	t.Helper()
	st := status.Convert(err)
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && st.Code() == code && info.GetReason() == reason {
			return
		}
	}
	t.Errorf("%s: %v, want %s and %s", what, err, code, reason)
}

// output runs a command and returns what it prints.
func output(t *testing.T, client sandboxv1.SandboxServiceClient, id, command string) string {
	t.Helper()
	stream, err := client.Execute(t.Context(), &sandboxv1.ExecuteRequest{SandboxId: id, Command: &sandboxv1.ExecuteRequest_Shell{Shell: command}})
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for {
		m, err := stream.Recv()
		if err != nil {
			t.Fatalf("%s: %v after %q", command, err, text)
		}
		text += string(m.GetOutput().GetData())
		if m.GetExited() != nil {
			return text
		}
	}
}

// descriptors returns what the descriptors of a process stand for, from 0 to the first
// free one.
func descriptors(pid int) (open []string) {
	for {
		what, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, len(open)))
		if err != nil {
			return open
		}
		open = append(open, what)
	}
}

// exhaust leaves a server no free descriptor until free is called. before are the
// descriptors that it had earlier.
func (s *server) exhaust(t *testing.T, before []string) (free func()) {
	t.Helper()
	pid := s.Process.Pid
	var old unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &old); err != nil {
		t.Fatal(err)
	}
	limit := len(descriptors(pid))
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(limit), Max: old.Max}, nil); err != nil {
		t.Fatal(err)
	}
	// Connections take what the server had open for a moment only. The others wait.
	for range 16 {
		conn, err := net.Dial("unix", strings.TrimPrefix(s.address, "unix://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	eventually(t, time.Minute, "no descriptor is free, or soon will be", func() bool {
		open := descriptors(pid)
		for fd, what := range open {
			if !strings.HasPrefix(what, "socket:") && (fd >= len(before) || what != before[fd]) {
				return false
			}
		}
		return len(open) >= limit
	})
	return func() {
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &old, nil); err != nil {
			t.Error(err)
		}
	}
}

// A server without a free file descriptor serves what needs none: commands and files of
// sandboxes that it has connections to. What needs one is refused for now, and no
// sandbox is said to be missing. Connections wait. Scrapes show it, and when there are
// descriptors again everything works.
func TestDescriptorsRunOut(t *testing.T) {
	need(t)
	t.Parallel()
	dir := t.TempDir()
	s, err := serve(dir, watched(dir)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	id := s.create(t)
	metrics, client := s.scraper(), s.stubs(t)
	counted := make(chan ran, 1)
	go func() { counted <- s.run("", "exec", id, "-c", "touch /workspace/begun; "+counting) }()
	output(t, client, id, "until [ -e /workspace/begun ]; do sleep 0.1; done")
	before := descriptors(s.Process.Pid)
	if n := metrics.value(t, "process_max_fds"); n < 1 {
		t.Fatalf("a limit of %g descriptors", n)
	}

	free := s.exhaust(t, before)
	waiting := make(chan ran, 1)
	go func() { waiting <- s.run("", "ls", "--quiet") }()
	for range 3 {
		if got := output(t, client, id, "echo on"); got != "on\n" {
			t.Errorf("a command: %q", got)
		}
		if _, err := client.StatFile(t.Context(), &sandboxv1.StatFileRequest{SandboxId: id, Path: "/workspace/begun"}); err != nil {
			t.Errorf("a file: %v", err)
		}
		for what, call := range map[string]func() error{
			"create": func() error {
				_, err := client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "more"})
				return err
			},
			"create it again": func() error {
				_, err := client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: id})
				return err
			},
			"get": func() error {
				_, err := client.GetSandbox(t.Context(), &sandboxv1.GetSandboxRequest{SandboxId: id})
				return err
			},
			"list": func() error {
				_, err := client.ListSandboxes(t.Context(), &sandboxv1.ListSandboxesRequest{})
				return err
			},
			"delete": func() error {
				_, err := client.DeleteSandbox(t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: id})
				return err
			},
		} {
			wantError(t, what, call(), codes.Unavailable, "PROVIDER_UNAVAILABLE")
		}
	}
	if code, page, err := metrics.page("/healthz"); err != nil || code != http.StatusOK {
		t.Errorf("healthz: %d %q %v", code, page, err)
	}
	// The alert SandgateDescriptorsRunOut counts on it.
	if built, limit := metrics.value(t, "sandgate_build_info"), metrics.value(t, "process_max_fds"); built != 1 || limit != 0 {
		t.Errorf("%g build infos, a limit of %g", built, limit)
	}
	free()
	if got := <-waiting; got.code != 0 || got.stdout != id+"\n" {
		t.Errorf("the connection that waited: %+v", got)
	}
	s.must(t, "create", "more")
	s.must(t, "exec", id, "--", "touch", "/workspace/end")
	got := <-counted
	if got.code != 7 {
		t.Errorf("the command that ran meanwhile: %+v", got)
	}
	checkCounted(t, got.stdout)
}
