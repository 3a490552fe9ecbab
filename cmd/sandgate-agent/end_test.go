package main

import (
	"context"
	"io"
	"net"
	"os"
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
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming/sealed"
)

// endsWithin is how long the agent may take to end on a busy machine: far less than the
// handshake timeout.
const endsWithin = 3 * time.Second

// The agent ends at once despite silent connections, and still reports to its callers how
// their commands ended.
func TestServeEndsBesideSilentConnections(t *testing.T) {
	dir, err := os.MkdirTemp("", "agent")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket, address, secret := filepath.Join(dir, "s.sock"), freeAddress(t), sealed.NewSecret()
	serve := program("serve", "--listen", "unix://"+socket, "--listen-tcp", address, "--workdir", "/")
	serve.Env = append(serve.Env, secretVariable+"="+secret.Text())
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = serve.Process.Kill() })
	conn, err := grpc.NewClient("unix://"+socket, protocol.Unconfined(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	live, err := agentv1.NewAgentServiceClient(conn).Execute(ctx, &sandboxv1.ExecuteRequest{
		Command: &sandboxv1.ExecuteRequest_Shell{Shell: "exec sleep 1000"}}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	if e, err := live.Recv(); err != nil || e.GetStarted() == nil {
		t.Fatalf("%v, %v", e, err)
	}

	for range 3 {
		keep(t, mustDial(t, "unix", socket))
		keep(t, mustDial(t, "tcp", address))
		c, err := sealed.Client(ctx, mustDial(t, "tcp", address), secret)
		if err != nil {
			t.Fatal(err)
		}
		keep(t, c)
		handSilence(t, socket)
	}
	for _, said := range []string{"P", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"} {
		c := mustDial(t, "unix", socket)
		keep(t, c)
		if _, err := io.WriteString(c, said); err != nil {
			t.Fatal(err)
		}
		// The answer shows that the agent has accepted the connection.
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}

	began := time.Now()
	if err := serve.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- serve.Wait() }()
	e, err := live.Recv()
	if err != nil || e.GetExited().GetReason() != sandboxv1.ExitReason_EXIT_REASON_SANDBOX_STOPPED {
		t.Errorf("the live call: %v, %v", e, err)
	}
	if _, err := live.Recv(); err == nil || !strings.Contains(err.Error(), "EOF") {
		t.Errorf("the live call's end: %v", err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("serve ended with %v", err)
		}
		t.Logf("it ended after %v", time.Since(began))
	case <-time.After(endsWithin):
		t.Errorf("it has not ended after %v", endsWithin)
	}
}

func mustDial(t *testing.T, network, address string) net.Conn {
	t.Helper()
	c, err := net.Dial(network, address)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func keep(t *testing.T, c io.Closer) {
	t.Helper()
	t.Cleanup(func() { _ = c.Close() })
}

// handSilence passes two pipes that stay silent.
func handSilence(t *testing.T, socket string) {
	t.Helper()
	theirIn, ourIn, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ourOut, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	keep(t, ourIn)
	keep(t, ourOut)
	guard := mustDial(t, "unix", socket+handoverSuffix)
	keep(t, guard)
	rights := unix.UnixRights(int(theirIn.Fd()), int(theirOut.Fd()))
	if _, _, err := guard.(*net.UnixConn).WriteMsgUnix([]byte{0}, rights, nil); err != nil {
		t.Fatal(err)
	}
	_ = theirIn.Close()
	_ = theirOut.Close()
	// The agent sends first, once it has accepted them.
	if _, err := ourOut.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}
