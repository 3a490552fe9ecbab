package carrier

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	"github.com/sandgate/sandgate/server/egress"
)

// silence is how long a connection may carry nothing in these tests.
const silence = 200 * time.Millisecond

// endSilent has the server end a connection that carries nothing.
func endSilent(_ *harness, c *Config) {
	c.Dialer = &egress.Dialer{Resolver: c.Dialer.Resolver, Idle: silence}
}

// An agent that announces connections and then sends nothing on them holds its own
// places, and those for a bounded time. A connection that carries something goes on.
func TestAnnouncedConnectionsThatCarryNothingEnd(t *testing.T) {
	port := echo(t)
	h := startWith(t, endSilent, 3, allow(port))
	stream := h.hold(t)
	announce(t, stream, 1, "127.0.0.1", port)
	active := next(t, h.carried)
	for id, host := range map[uint64]string{2: "127.0.0.1", 3: "ok.example"} {
		announce(t, stream, id, host, port)
		next(t, h.carried)
	}
	announce(t, stream, 4, "127.0.0.1", port)
	if r := refusal(t, stream); r.GetId() != 4 || r.GetReason() != agentv1.EgressRefusalReason_EGRESS_REFUSAL_REASON_LIMIT {
		t.Fatalf("beyond the bound: %v", r)
	}
	if e := next(t, h.ended); !errors.Is(e.Err, ErrLimit) {
		t.Fatalf("beyond the bound: %+v", e)
	}
	tick := time.NewTicker(silence / 10)
	defer tick.Stop()
	deadline := time.After(wait)
	sent := 0
	for silent := 0; silent < 2; {
		select {
		case e := <-h.ended:
			if e.Err == nil || !strings.Contains(e.Err.Error(), "carried nothing") || e.Sent+e.Received != 0 {
				t.Fatalf("%+v", e)
			}
			silent++
		case <-tick.C:
			if err := active.stream.Send(data("x")); err != nil {
				t.Fatal(err)
			}
			sent++
		case <-deadline:
			t.Fatal("the silent connections do not end")
		}
	}
	if err := active.stream.Send(eof()); err != nil {
		t.Fatal(err)
	}
	if got, want := active.read(t), "echo "+strings.Repeat("x", sent); got != want {
		t.Errorf("the connection that carries something: %q, want %q", got, want)
	}
	close(active.done)
	if e := next(t, h.ended); e.Err != nil {
		t.Errorf("%+v", e)
	}
	announce(t, stream, 5, "127.0.0.1", port)
	if c := next(t, h.carried); c.id != 5 {
		t.Errorf("id %d", c.id)
	}
}

// An agent that permits no stream for what it announces has the server hold a
// connection to an upstream for a bounded time, and loses no other connection by it.
func TestAnnouncedConnectionThatTheAgentDoesNotTakeEnds(t *testing.T) {
	port := echo(t)
	h := startWith(t, func(h *harness, _ *Config) {
		// AcceptEgress and one connection.
		h.options = []grpc.ServerOption{grpc.MaxConcurrentStreams(2)}
	}, 2, allow(port))
	h.carrier.taking = silence
	stream := h.hold(t)
	announce(t, stream, 1, "127.0.0.1", port)
	first := next(t, h.carried)
	announce(t, stream, 2, "127.0.0.1", port)
	if e := next(t, h.ended); e.Err == nil || e.Addr == "" || e.Duration < silence {
		t.Fatalf("%+v", e)
	}
	if err := errors.Join(first.stream.Send(data("x")), first.stream.Send(eof())); err != nil {
		t.Fatal(err)
	}
	if got := first.read(t); got != "echo x" {
		t.Errorf("the other connection: %q", got)
	}
	close(first.done)
	next(t, h.ended)
	announce(t, stream, 3, "127.0.0.1", port)
	if c := next(t, h.carried); c.id != 3 {
		t.Errorf("id %d", c.id)
	}
}

// An agent that never ends the stream of a connection that has ended holds its own
// place, and that for a bounded time.
func TestEndedConnectionWhoseStreamTheAgentHoldsEnds(t *testing.T) {
	port := echo(t)
	h := startWith(t, endSilent, 1, allow(port))
	stream := h.hold(t)
	announce(t, stream, 1, "127.0.0.1", port)
	held := next(t, h.carried)
	if err := errors.Join(held.stream.Send(data("x")), held.stream.Send(eof())); err != nil {
		t.Fatal(err)
	}
	if e := next(t, h.ended); e.Err != nil || e.Sent != 1 || e.Received != int64(len("echo x")) || e.Duration < silence {
		t.Errorf("%+v", e)
	}
	announce(t, stream, 2, "127.0.0.1", port)
	if c := next(t, h.carried); c.id != 2 {
		t.Errorf("id %d", c.id)
	}
}
