package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// The test binary is the program as well.
const mainEnv = "SANDGATE_AGENT_TEST_MAIN"

func TestMain(m *testing.M) {
	if pid, err := strconv.Atoi(os.Getenv(intruderEnv)); err == nil {
		os.Exit(intrude(pid))
	}
	if text := os.Getenv(limitEnv); text != "" {
		if err := setLimit(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(mainEnv) != "" {
		os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	goleak.VerifyTestMain(m)
}

func program(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), mainEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// stdio is the two pipes of a connect process, as a provider has them.
type stdio struct {
	io.ReadCloser
	in io.WriteCloser
}

func (s stdio) Write(p []byte) (int, error)      { return s.in.Write(p) }
func (s stdio) Close() error                     { _ = s.in.Close(); return s.ReadCloser.Close() }
func (stdio) LocalAddr() net.Addr                { return &net.UnixAddr{Name: "stdio"} }
func (stdio) RemoteAddr() net.Addr               { return &net.UnixAddr{Name: "stdio"} }
func (stdio) SetDeadline(time.Time) error        { return nil }
func (stdio) SetReadDeadline(time.Time) error    { return nil }
func (stdio) SetWriteDeadline(t time.Time) error { return nil }

// output runs a command and returns what it wrote.
func output(t *testing.T, client agentv1.AgentServiceClient, shell string, opts ...grpc.CallOption) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := client.Execute(ctx, &sandboxv1.ExecuteRequest{
		Command: &sandboxv1.ExecuteRequest_Shell{Shell: shell}}, opts...)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for {
		e, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return out.String(), nil
		}
		if err != nil {
			return out.String(), err
		}
		out.Write(e.GetOutput().GetData())
	}
}

// A command runs through connect's standard input and output; connect waits
// for the agent, and both end as they should.
func TestServeAndConnect(t *testing.T) {
	name := "unix:@sandgate-test-" + filepath.Base(t.TempDir()) + "-" + time.Now().Format("150405.000000")
	connect, conn := joined(t, "--to", name)
	path := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	inherited, err := l.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	serve := program("serve", "--listen", name, "--listen-fd", "3", "--incarnation", "one", "--workdir", "/usr")
	serve.ExtraFiles = []*os.File{inherited}
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = l.Close()
	_ = inherited.Close()

	if got, err := pwd(t, conn); err != nil || got != "/usr\n" {
		t.Errorf("through connect: %q, %v", got, err)
	}
	if err := connect.Wait(); err != nil {
		t.Errorf("connect ended with %v", err)
	}
	if got, err := pwdAt(t, "unix://"+path); err != nil || got != "/usr\n" {
		t.Errorf("through the inherited socket: %q, %v", got, err)
	}
	_ = serve.Process.Signal(syscall.SIGTERM)
	if err := serve.Wait(); err != nil {
		t.Errorf("serve ended with %v", err)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"nothing"}, {"serve", "--no-such-flag"}, {"connect", "extra"}} {
		err := program(args...).Run()
		exit, ok := err.(*exec.ExitError) //nolint:errorlint // Run returns it bare
		if !ok || exit.ExitCode() != 2 {
			t.Errorf("%q: %v", args, err)
		}
	}
	if err := program("serve", "--listen", "tcp://1.2.3.4:5").Run(); err == nil {
		t.Error("a wrong address was taken")
	}
	out, err := program("version").Output()
	if err != nil || strings.TrimSpace(string(out)) != version {
		t.Errorf("version: %q, %v", out, err)
	}
}
