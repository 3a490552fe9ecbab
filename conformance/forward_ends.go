package conformance

import (
	"context"
	"io"
	"net"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// forwardEndCases are about connections that a server, or the end of the sandbox, ends.
var forwardEndCases = []Case{
	{Name: "C31_forward_another_incarnation_is_refused", run: forwardIncarnation},
	{Name: "C31_forward_ends_with_the_sandbox", run: forwardDeleted},
	{Name: "C31_forward_cut_inner_hop", hook: true, run: forwardCut},
}

// endTime is how long the end of an open connection may take.
const endTime = 30 * time.Second

// connected returns a connection to the listener's echo that has carried data.
func connected(ctx context.Context, t T, sandbox *sandgate.Sandbox, l listening) *sandgate.Conn {
	t.Helper()
	conn, err := sandbox.Connect(ctx, int(l.ports["echo"]))
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(conn.Reset)
	if err := echoed(conn); err != nil {
		t.Fatalf("%v", err)
	}
	return conn
}

func echoed(conn net.Conn) error {
	err := conn.SetDeadline(time.Now().Add(endTime))
	if err == nil {
		_, err = io.WriteString(conn, "ping")
	}
	if err == nil {
		_, err = io.ReadFull(conn, make([]byte, 4))
	}
	return err
}

// listener runs the listener in a sandbox that the case has made.
func (s *Suite) listener(ctx context.Context, t T, sandbox *sandgate.Sandbox) listening {
	t.Helper()
	return Sandbox{Client: s.stub, ID: sandbox.ID(), GoProgram: s.opts.GoProgram, dir: s.workdir(ctx, t, sandbox)}.listen(ctx, t)
}

func forwardIncarnation(ctx context.Context, t T, s *Suite) {
	other := s.client.Sandbox(s.sandbox(ctx, t, nil).ID())
	other.Incarnation = "never-was"
	_, err := other.Connect(ctx, 80)
	wantReason(t, "connect", err, "SANDBOX_REPLACED")
	_, err = s.client.Sandbox(s.newID("none")).Connect(ctx, 80)
	wantReason(t, "connect to no sandbox", err, "SANDBOX_NOT_FOUND")
}

func forwardDeleted(ctx context.Context, t T, s *Suite) {
	sandbox := s.create(ctx, t, s.request(""))
	deleted := false
	t.Cleanup(func() {
		if !deleted {
			s.delete(t, sandbox)
		}
	})
	conn := connected(ctx, t, sandbox, s.listener(ctx, t, sandbox))
	s.delete(t, sandbox)
	deleted = true
	_, err := conn.Read(make([]byte, 1))
	wantReason(t, "an open connection", err, "SANDBOX_NOT_FOUND", "SANDBOX_NOT_ACTIVE", "CONNECTION_RESET")
	_, err = sandbox.Connect(ctx, 80)
	wantReason(t, "another connection", err, "SANDBOX_NOT_FOUND")
}

// forwardCut: an open connection ends with the connection that carries it, and another
// can be opened at once.
func forwardCut(ctx context.Context, t T, s *Suite) {
	sandbox := s.sandbox(ctx, t, nil)
	l := s.listener(ctx, t, sandbox)
	conn := connected(ctx, t, sandbox, l)
	if n, err := s.opts.CutInner(ctx); err != nil || n == 0 {
		t.Fatalf("cut %d connections: %v", n, err)
	}
	_, err := conn.Read(make([]byte, 1))
	wantReason(t, "an open connection", err, "AGENT_UNAVAILABLE")
	connected(ctx, t, sandbox, l)
}
