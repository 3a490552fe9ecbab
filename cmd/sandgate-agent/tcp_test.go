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
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sandgate/sandgate/agent/protocol"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	"github.com/sandgate/sandgate/streaming/sealed"
)

// freeAddress returns an address of this machine without a listener.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// tcpClient calls the agent at an address.
func tcpClient(t *testing.T, address string, s sealed.Secret) agentv1.AgentServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, protocol.Unconfined(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
			if err != nil {
				return nil, err
			}
			return sealed.Client(ctx, c, s)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return agentv1.NewAgentServiceClient(conn)
}

// asUser runs a program as an ordinary user if the test is root.
func asUser(t *testing.T, cmd *exec.Cmd, dirs ...string) {
	t.Helper()
	if os.Getuid() != 0 {
		return
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 1000, Gid: 1000}
	for _, dir := range dirs {
		if err := os.Chown(dir, 1000, 1000); err != nil {
			t.Fatal(err)
		}
	}
}

// TestServeOverTCPNeedsTheSecret: the agent accepts calls over TCP from peers that know its secret, and its
// commands can't read it.
func TestServeOverTCPNeedsTheSecret(t *testing.T) {
	dir, err := os.MkdirTemp("", "agent")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	address, secret := freeAddress(t), sealed.NewSecret()
	socket := filepath.Join(dir, "s.sock")
	serve := program("serve", "--listen", "unix://"+socket, "--listen-tcp", address, "--workdir", "/", "--state-dir", dir,
		"--", "sh", "-c", "env >"+dir+"/main; exec sleep 1000")
	serve.Env, serve.Stderr = append(serve.Env, secretVariable+"="+secret.Text()), os.Stderr
	asUser(t, serve, dir)
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	client := tcpClient(t, address, secret)
	got, err := output(t, client, "echo through; env; cat "+dir+"/main", grpc.WaitForReady(true))
	if err != nil || !strings.HasPrefix(got, "through\n") {
		t.Fatalf("%q, %v", got, err)
	}
	if strings.Contains(got, secret.Text()) || strings.Contains(got, secretVariable) {
		t.Errorf("commands inherit the secret: %s", got)
	}
	pid := serve.Process.Pid
	got, err = output(t, client, fmt.Sprintf("tr '\\0' '\\n' </proc/%d/environ; cat /proc/%d/cmdline", pid, pid))
	if err != nil || strings.Contains(got, secret.Text()) || !strings.Contains(got, "listen-tcp") {
		t.Errorf("what commands see of the agent: %q, %v", got, err)
	}
	// The socket is there as before.
	conn, err := grpc.NewClient("unix://"+socket, protocol.Unconfined(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if got, err := output(t, agentv1.NewAgentServiceClient(conn), "echo socket", grpc.WaitForReady(true)); err != nil || got != "socket\n" {
		t.Errorf("through the socket: %q, %v", got, err)
	}
	t.Run("peers without the secret", func(t *testing.T) {
		raw, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := sealed.Client(ctx, raw, sealed.NewSecret()); !errors.Is(err, sealed.ErrUnauthenticated) {
			t.Errorf("%v", err)
		}
	})
	if err := serve.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := serve.Wait(); err != nil {
		t.Errorf("serve ended with %v", err)
	}
}

func TestNoSecretNoListener(t *testing.T) {
	for _, secret := range []string{"", "0123", strings.Repeat("x", sealed.TextSize)} {
		cmd := program("serve", "--listen", "unix://"+filepath.Join(t.TempDir(), "s"), "--listen-tcp", freeAddress(t))
		cmd.Env = append(cmd.Env, secretVariable+"="+secret)
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), secretVariable) {
			t.Errorf("%q: %v: %s", secret, err, out)
		}
		if len(secret) > 2 && strings.Contains(string(out), secret) {
			t.Errorf("it shows the secret: %s", out)
		}
	}
}

// TestStartReadsTheSecretFromStandardInput: an agent in the background gets its secret on standard input, which may
// stay open.
func TestStartReadsTheSecretFromStandardInput(t *testing.T) {
	dir, secret := t.TempDir(), sealed.NewSecret()
	t.Cleanup(func() {
		if out, err := program("stop", "--dir", dir).CombinedOutput(); err != nil {
			t.Errorf("stop: %v: %s", err, out)
		}
	})
	start := func(incarnation, address string, more ...string) (string, error) {
		t.Helper()
		cmd := program(append([]string{"start", "--dir", dir, "--incarnation", incarnation, "--listen-tcp", address}, more...)...)
		cmd.SysProcAttr = nil
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = in.Close() }()
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(in, secret.Text()); err != nil {
			t.Fatal(err)
		}
		err = cmd.Wait()
		return out.String(), err
	}
	address := freeAddress(t)
	for range 2 {
		if said, err := start("one", address); err != nil || said != "tcp "+address+"\n" {
			t.Fatalf("start: %q, %v", said, err)
		}
	}
	if got, err := output(t, tcpClient(t, address, secret), "env", grpc.WaitForReady(true)); err != nil || strings.Contains(got, secret.Text()) {
		t.Errorf("%q, %v", got, err)
	}
	// The next agent has no TCP listener, and start prints no address, even if it is found
	// running.
	if _, out, err := startedAgent(t, dir, "two", "--generation", "1"); err != nil || out != "" {
		t.Fatalf("%q, %v", out, err)
	}
	if said, err := start("two", address, "--generation", "1"); err != nil || said != "" {
		t.Errorf("an agent without a TCP listener: %q, %v", said, err)
	}
	t.Run("the port is taken", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		said, err := start("three", l.Addr().String(), "--generation", "2")
		if err == nil || !strings.Contains(said, "address already in use") {
			t.Errorf("%q, %v", said, err)
		}
	})
	t.Run("no secret", func(t *testing.T) {
		cmd := program("start", "--dir", dir, "--incarnation", "four", "--listen-tcp", address)
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), errNoSecret.Error()) {
			t.Errorf("%v: %s", err, out)
		}
		if _, err := readSecret(strings.NewReader("0123"), time.Second); !errors.Is(err, errNoSecret) {
			t.Errorf("half a secret: %v", err)
		}
		r, w := io.Pipe()
		if _, err := readSecret(r, 10*time.Millisecond); !errors.Is(err, errNoSecret) {
			t.Errorf("a secret that does not come: %v", err)
		}
		_ = w.Close()
	})
}
