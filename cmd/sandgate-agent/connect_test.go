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

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sandgate/sandgate/agent/protocol"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
)

// serving is an agent that listens at the returned address.
func serving(t *testing.T) (address string, pid int) {
	t.Helper()
	dir := t.TempDir()
	address = "unix://" + filepath.Join(dir, "a.sock")
	serve := program("serve", "--listen", address, "--incarnation", "one", "--workdir", "/usr", "--state-dir", dir)
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = serve.Process.Signal(syscall.SIGTERM)
		if err := serve.Wait(); err != nil {
			t.Errorf("serve ended with %v", err)
		}
	})
	return address, serve.Process.Pid
}

// joined is a connect process with a connection over its standard streams.
func joined(t *testing.T, args ...string) (*exec.Cmd, stdio) {
	t.Helper()
	connect := program(append([]string{"connect"}, args...)...)
	connect.Stderr = os.Stderr
	in, err := connect.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := connect.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := connect.Start(); err != nil {
		t.Fatal(err)
	}
	return connect, stdio{out, in}
}

// pwd runs a command through a connection, which it closes.
func pwd(t *testing.T, conn net.Conn) (string, error) {
	t.Helper()
	return pwdAt(t, "passthrough:///connect", grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return conn, nil }))
}

// pwdAt runs a command by an agent's address.
func pwdAt(t *testing.T, target string, opts ...grpc.DialOption) (string, error) {
	t.Helper()
	client, err := grpc.NewClient(target, append(opts, protocol.Unconfined(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	return output(t, agentv1.NewAgentServiceClient(client), "pwd")
}

// pipesOf counts a process's pipes.
func pipesOf(t *testing.T, pid int) (n int) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if to, _ := os.Readlink(filepath.Join(dir, e.Name())); strings.HasPrefix(to, "pipe:") {
			n++
		}
	}
	return n
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatal(what + ": not within 20 s")
		}
	}
}

func TestConnectHandsOver(t *testing.T) {
	address, agent := serving(t)
	await(t, "the agent", func() bool { return listening(strings.TrimPrefix(address, "unix://")) })
	before := pipesOf(t, agent)

	connect, conn := joined(t, "--to", address)
	await(t, "the agent has the pipes", func() bool { return pipesOf(t, agent) == before+2 })
	if got, err := pwd(t, conn); err != nil || got != "/usr\n" {
		t.Errorf("%q, %v", got, err)
	}
	if err := connect.Wait(); err != nil {
		t.Errorf("connect ended with %v", err)
	}
	await(t, "the agent lets go of them", func() bool { return pipesOf(t, agent) == before })

	t.Run("the end of connect is the end of the connection", func(t *testing.T) {
		connect, conn := joined(t, "--to", address)
		await(t, "the agent has the pipes", func() bool { return pipesOf(t, agent) == before+2 })
		if err := connect.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Error(err)
		}
		_ = connect.Wait()
		await(t, "the agent lets go of them", func() bool { return pipesOf(t, agent) == before })
	})
	t.Run("what is no pair of pipes is refused", func(t *testing.T) {
		guard, err := net.Dial("unix", strings.TrimPrefix(address, "unix://")+handoverSuffix)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = guard.Close() }()
		null, err := os.Open("/dev/null")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = null.Close() }()
		rights := unix.UnixRights(int(null.Fd()), int(null.Fd()))
		if _, _, err := guard.(*net.UnixConn).WriteMsgUnix([]byte{0}, rights, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := guard.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("read: %v", err)
		}
	})
}

// Where the agent takes no pipes, connect passes the bytes on.
func TestConnectRelaysWhereTheAgentTakesNoPipes(t *testing.T) {
	address, _ := serving(t)
	path := strings.TrimPrefix(address, "unix://")
	await(t, "the agent", func() bool { return listening(path) })
	if err := os.Remove(path + handoverSuffix); err != nil {
		t.Fatal(err)
	}
	connect, conn := joined(t, "--to", address)
	if got, err := pwd(t, conn); err != nil || got != "/usr\n" {
		t.Errorf("%q, %v", got, err)
	}
	if err := connect.Wait(); err != nil {
		t.Errorf("connect ended with %v", err)
	}
}
