package agent

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

type forwardCall = grpc.BidiStreamingClient[sandboxv1.ForwardRequest, sandboxv1.ForwardResponse]

// forward opens a connection to a port.
func (h *harness) forward(ctx context.Context, port int) (forwardCall, error) {
	call, err := h.Forward(ctx)
	if err != nil {
		return nil, err
	}
	err = call.Send(&sandboxv1.ForwardRequest{Payload: &sandboxv1.ForwardRequest_Start{Start: &sandboxv1.ForwardStart{Port: int32(port)}}})
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	_, err = call.Recv()
	return call, err
}

// listenTCP accepts connections and hands them over.
func listenTCP(t *testing.T) (int, <-chan net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conns := make(chan net.Conn, 1024)
	accepting := make(chan struct{})
	go func() {
		defer close(accepting)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns <- c
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-accepting
		close(conns)
		for c := range conns {
			_ = c.Close()
		}
	})
	return l.Addr().(*net.TCPAddr).Port, conns
}

// The number of connections is bounded, and each that ends makes room for another.
func TestForwardsAreBoundedAndMakeRoom(t *testing.T) {
	h := start(t, setup{})
	port, _ := listenTCP(t)
	const bound = 128
	ctx, cancel := context.WithCancelCause(testContext(t))
	for i := range bound {
		if _, err := h.forward(ctx, port); err != nil {
			t.Fatalf("connection %d: %v", i+1, err)
		}
	}
	_, err := h.forward(testContext(t), port)
	if got := reasonOf(t, err); got != "TOO_MANY_CONNECTIONS" {
		t.Fatalf("one more: %v", err)
	}
	cancel(nil)
	eventually(t, "there is room again", func() bool {
		_, err := h.forward(testContext(t), port)
		return err == nil
	})
}

// Data is activity; an open connection is not.
func TestForwardedDataIsActivity(t *testing.T) {
	h := start(t, setup{})
	port, conns := listenTCP(t)
	idle := func() time.Duration {
		t.Helper()
		reply, err := h.GetActivity(testContext(t), &agentv1.GetActivityRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return reply.GetIdleTime().AsDuration()
	}
	call, err := h.forward(testContext(t), port)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the agent is idle beside an open connection", func() bool { return idle() >= 50*time.Millisecond })
	begun := time.Now()
	conn := <-conns
	defer conn.Close()
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := call.Recv(); err != nil {
		t.Fatal(err)
	}
	if got := idle(); got > time.Since(begun) {
		t.Errorf("idle for %v, %v after data", got, time.Since(begun))
	}
}

// The agent's end resets the connection, and the caller is told why.
func TestShutdownResetsForwards(t *testing.T) {
	h := start(t, setup{})
	port, conns := listenTCP(t)
	call, err := h.forward(testContext(t), port)
	if err != nil {
		t.Fatal(err)
	}
	conn := <-conns
	defer conn.Close()
	if _, err := h.Shutdown(testContext(t), &agentv1.ShutdownRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := call.Recv(); reasonOf(t, err) != "SANDBOX_NOT_ACTIVE" {
		t.Errorf("%v", err)
	}
	if n, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the program reads %d bytes, %v", n, err)
	}
}
