package egress

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair returns two ends of a TCP connection.
func pair(t testing.TB) (near, far *net.TCPConn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	dialed, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialed.Close(); accepted.Close() })
	return dialed.(*net.TCPConn), accepted.(*net.TCPConn)
}

// relayed is a relay between a program and an upstream.
type relayed struct {
	program  *net.TCPConn // the test's
	upstream *net.TCPConn // the test's
	conn     *Conn
	done     <-chan error
}

// relay relays a connection that was asked for as host and port, whatever the
// upstream's real address is. prepare is called before.
func relay(t testing.TB, d *Dialer, host string, port uint32, prepare ...func(*Conn)) *relayed {
	t.Helper()
	program, client := pair(t)
	toUpstream, upstream := pair(t)
	conn := newConn(d, compile(t, template(at(hosts("*"), port))), parse(t, host, port), toUpstream)
	for _, do := range prepare {
		do(conn)
	}
	return &relayed{program: program, upstream: upstream, conn: conn, done: run(t, conn, client)}
}

func run(t testing.TB, conn *Conn, client Client) <-chan error {
	done := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err := conn.Relay(context.Background(), client)
		done <- err
		// The caller of Relay closes the client.
		_ = client.Close()
	}()
	t.Cleanup(func() { conn.Close(); <-ended })
	return done
}

func send(t testing.TB, w io.Writer, text string) {
	t.Helper()
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
}

func expect(t testing.TB, r io.Reader, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(r, got); err != nil || string(got) != want {
		t.Fatalf("got %q, %v; want %q", got[:n], err, want)
	}
}

func wait(t testing.TB, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("the relay has not ended")
		return nil
	}
}

// server starts an upstream and returns a dialer under which any name resolves to
// it, a policy that allows a.example at its port, and that target.
func server(t testing.TB, handler http.Handler) (*Dialer, *Policy, Target) {
	t.Helper()
	upstream := httptest.NewUnstartedServer(handler)
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	upstream.Config.Protocols = &protocols
	upstream.Start()
	t.Cleanup(upstream.Close)
	port := uint32(netip.MustParseAddrPort(upstream.Listener.Addr().String()).Port())
	policy := compile(t, template(at(hosts("a.example"), port), at(cidrs("127.0.0.0/8"), port)))
	return &Dialer{Resolver: names{"a.example": {"127.0.0.1"}}}, policy, parse(t, "a.example", port)
}

// program opens a connection and returns the program's end.
func program(t testing.TB, d *Dialer, policy *Policy, target Target) (*net.TCPConn, <-chan error) {
	t.Helper()
	conn, err := d.Open(t.Context(), policy, target)
	if err != nil {
		t.Fatal(err)
	}
	near, client := pair(t)
	return near, run(t, conn, client)
}
