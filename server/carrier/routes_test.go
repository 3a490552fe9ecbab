package carrier

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
)

// listening is an agent's answer to EgressAddresses.
func listening(id uint64) *agentv1.AcceptEgressResponse {
	return &agentv1.AcceptEgressResponse{Message: &agentv1.AcceptEgressResponse_Listening{Listening: &agentv1.EgressListening{Id: id}}}
}

// routed is a Carrier whose sandbox may have local routes. The test plays provider and
// agent, and sees both in one order.
type routed struct {
	*harness
	stream grpc.BidiStreamingServer[agentv1.AcceptEgressRequest, agentv1.AcceptEgressResponse]
	routes chan []netip.Prefix // of calls
	result chan error          // of the next call

	calls    atomic.Int32
	expected int32
}

func startRouted(t *testing.T, listens bool, rules ...*sandboxv1.EgressRule) *routed {
	t.Helper()
	r := &routed{routes: make(chan []netip.Prefix), result: make(chan error)}
	r.harness = startWith(t, func(h *harness, c *Config) {
		h.listens = listens
		c.Route = func(ctx context.Context, name string, prefixes []netip.Prefix) error {
			r.calls.Add(1)
			if name != key.Name {
				return fmt.Errorf("a route of %s", name)
			}
			select {
			case r.routes <- prefixes:
				return <-r.result
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}, 4, rules...)
	r.stream = r.hold(t)
	return r
}

// expectRoutes answers a call that sets these routes.
func (r *routed) expectRoutes(t *testing.T, result error, prefixes ...string) {
	t.Helper()
	r.expected++
	var got []string
	for _, prefix := range next(t, r.routes) {
		got = append(got, prefix.String())
	}
	if !slices.Equal(got, prefixes) {
		t.Errorf("routes %q, want %q", got, prefixes)
	}
	r.result <- result
}

// expectAddresses receives what the agent shall listen at, "CIDR PORT", and returns the
// id for the answer.
func (r *routed) expectAddresses(t *testing.T, at ...string) uint64 {
	t.Helper()
	m, err := r.stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, one := range m.GetAddresses().GetRanges() {
		got = append(got, one.GetCidr()+" "+strings.Trim(fmt.Sprint(one.GetPorts()), "[]"))
	}
	if m.GetAddresses() == nil || !slices.Equal(got, at) {
		t.Errorf("the agent got %v, want %q", m, at)
	}
	return m.GetAddresses().GetId()
}

// update changes the rules; the channel is closed when the change and its routes are done.
func (r *routed) update(t *testing.T, rules ...*sandboxv1.EgressRule) chan struct{} {
	t.Helper()
	done := make(chan struct{})
	info := r.setRules(t, rules...)
	go func() {
		defer close(done)
		r.carrier.Update(t.Context(), info)
		r.carrier.AwaitRoutes(t.Context(), key)
	}()
	return done
}

// expectNothing expects no call since the last one.
func (r *routed) expectNothing(t *testing.T) {
	t.Helper()
	if n := r.calls.Load(); n != r.expected {
		t.Errorf("routes were set %d times, want %d", n, r.expected)
	}
}

func literal(port uint32, cidrs ...string) *sandboxv1.EgressRule {
	return &sandboxv1.EgressRule{Cidrs: cidrs, Ports: []uint32{port}}
}

// Routes come before the agent listens, and go after it has let go of what it loses.
func TestRoutesOutliveTheAgentsListeners(t *testing.T) {
	r := startRouted(t, true, literal(80, "192.0.2.1/32"), literal(443, "198.51.100.0/24"))
	r.expectRoutes(t, nil, "192.0.2.1/32", "198.51.100.0/24")
	id := r.expectAddresses(t, "192.0.2.1/32 80", "198.51.100.0/24 443")
	waited := make(chan struct{})
	go func() { defer close(waited); r.carrier.AwaitRoutes(t.Context(), key) }()
	select {
	case <-waited:
		t.Error("the caller did not wait for the agent")
	default:
	}
	if err := r.stream.Send(listening(id)); err != nil {
		t.Fatal(err)
	}
	next(t, waited)

	done := r.update(t, literal(80, "203.0.113.7/32"), literal(443, "198.51.100.0/24"))
	r.expectRoutes(t, nil, "192.0.2.1/32", "198.51.100.0/24", "203.0.113.7/32")
	id = r.expectAddresses(t, "198.51.100.0/24 443", "203.0.113.7/32 80")
	// An answer to an earlier message counts for nothing.
	question := &agentv1.AcceptEgressResponse{Message: &agentv1.AcceptEgressResponse_Question{Question: &agentv1.EgressQuestion{Host: "a.example"}}}
	if err := errors.Join(r.stream.Send(listening(id-1)), r.stream.Send(question)); err != nil {
		t.Fatal(err)
	}
	if m, err := r.stream.Recv(); err != nil || m.GetAnswer() == nil { // so the one before it was handled
		t.Fatal(m, err)
	}
	r.expectNothing(t)
	if err := r.stream.Send(listening(id)); err != nil {
		t.Fatal(err)
	}
	r.expectRoutes(t, nil, "198.51.100.0/24", "203.0.113.7/32")
	next(t, done)

	// Rules with the same addresses, such as one more name, change nothing.
	next(t, r.update(t, literal(80, "203.0.113.7/32"), literal(443, "198.51.100.0/24"), &sandboxv1.EgressRule{Hosts: []string{"b.example"}}))
	r.expectNothing(t)

	// The last address goes.
	done = r.update(t)
	r.expectRoutes(t, nil, "198.51.100.0/24", "203.0.113.7/32")
	if err := r.stream.Send(listening(r.expectAddresses(t))); err != nil {
		t.Fatal(err)
	}
	r.expectRoutes(t, nil)
	next(t, done)
}

// A failed change leaves nothing that the next one could take for done.
func TestFailedRoutesAreSetAnew(t *testing.T) {
	r := startRouted(t, true, literal(80, "192.0.2.1/32"))
	r.expectRoutes(t, errors.New("the namespace is busy"), "192.0.2.1/32")
	r.carrier.AwaitRoutes(t.Context(), key) // which a failure ends
	done := r.update(t, literal(80, "192.0.2.1/32"))
	r.expectRoutes(t, nil, "192.0.2.1/32")
	if err := r.stream.Send(listening(r.expectAddresses(t, "192.0.2.1/32 80"))); err != nil {
		t.Fatal(err)
	}
	next(t, done)
	done = r.update(t, literal(80, "192.0.2.2/32"))
	r.expectRoutes(t, errors.New("the namespace is busy"), "192.0.2.1/32", "192.0.2.2/32")
	next(t, done)
	done = r.update(t, literal(80, "192.0.2.1/32"))
	r.expectRoutes(t, nil, "192.0.2.1/32")
	if err := r.stream.Send(listening(r.expectAddresses(t, "192.0.2.1/32 80"))); err != nil {
		t.Fatal(err)
	}
	next(t, done)
}

// Where the runtime or the agent has no local routes, nobody waits and nothing is sent.
func TestSandboxesWithoutLocalRoutes(t *testing.T) {
	t.Run("the runtime", func(t *testing.T) {
		r := startRouted(t, true, literal(80, "192.0.2.1/32"))
		r.expectRoutes(t, fmt.Errorf("gVisor: %w", providers.ErrUnsupported), "192.0.2.1/32")
		r.carrier.AwaitRoutes(t.Context(), key)
		next(t, r.update(t, literal(80, "192.0.2.2/32")))
		r.expectNothing(t)
	})
	t.Run("an older agent", func(t *testing.T) {
		r := startRouted(t, false, literal(80, "192.0.2.1/32"))
		r.carrier.AwaitRoutes(t.Context(), key)
		next(t, r.update(t, literal(80, "192.0.2.2/32")))
		r.expectNothing(t)
	})
	t.Run("no address in the rules", func(t *testing.T) {
		r := startRouted(t, true, &sandboxv1.EgressRule{Hosts: []string{"a.example"}}, literal(80, "127.0.0.0/8"))
		r.expectRoutes(t, nil) // in case an earlier server has set some
		if err := r.stream.Send(listening(r.expectAddresses(t))); err != nil {
			t.Fatal(err)
		}
		r.carrier.AwaitRoutes(t.Context(), key)
	})
}
