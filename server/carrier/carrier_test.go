package carrier

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	"github.com/sandgate/sandgate/providers"
)

func data(text string) *agentv1.CarryEgressResponse {
	return &agentv1.CarryEgressResponse{Payload: &agentv1.CarryEgressResponse_Data{Data: []byte(text)}}
}

func eof() *agentv1.CarryEgressResponse {
	return &agentv1.CarryEgressResponse{Payload: &agentv1.CarryEgressResponse_Eof{Eof: &agentv1.EgressEof{}}}
}

// read returns what the program reads until its direction ends.
func (c carried) read(t *testing.T) string {
	t.Helper()
	var got strings.Builder
	for {
		m, err := c.stream.Recv()
		if err != nil {
			t.Fatalf("after %q: %v", got.String(), err)
		}
		if m.GetEof() != nil {
			return got.String()
		}
		got.Write(m.GetData())
	}
}

func TestCarry(t *testing.T) {
	port := echo(t)
	h := start(t, 4, allow(port))
	stream := h.hold(t)
	announce(t, stream, 7, "OK.example", port)
	c := next(t, h.carried)
	if c.id != 7 {
		t.Fatalf("id %d", c.id)
	}
	for _, m := range []*agentv1.CarryEgressResponse{data("one "), data("two"), eof()} {
		if err := c.stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	if got := c.read(t); got != "echo one two" {
		t.Errorf("got %q", got)
	}
	// The server waits until the agent has delivered everything.
	select {
	case e := <-h.ended:
		t.Errorf("ended before the agent did: %+v", e)
	case <-time.After(20 * time.Millisecond):
	}
	close(c.done)
	e := next(t, h.ended)
	if e.Err != nil || e.Key != key || e.Sent != 7 || e.Received != 12 || e.Target == "" || !strings.HasPrefix(e.Addr, "127.0.0.1:") {
		t.Errorf("%+v", e)
	}
}

// What the connections of a sandbox carry, both ways together, takes its time.
func TestRateOfASandbox(t *testing.T) {
	port := echo(t)
	h := startWith(t, func(_ *harness, c *Config) { c.BytesPerSecond = 4096 }, 4, allow(port))
	stream := h.hold(t)
	begin := time.Now()
	content := strings.Repeat("x", 1024)
	for id := range uint64(3) {
		announce(t, stream, id, "ok.example", port)
		c := next(t, h.carried)
		for _, m := range []*agentv1.CarryEgressResponse{data(content), eof()} {
			if err := c.stream.Send(m); err != nil {
				t.Fatal(err)
			}
		}
		if got := c.read(t); got != "echo "+content {
			t.Errorf("got %d bytes", len(got))
		}
		close(c.done)
		next(t, h.ended)
	}
	// 6 KiB, of which 4 pass at once.
	if took := time.Since(begin); took < 500*time.Millisecond {
		t.Errorf("took %v", took)
	}
}

func TestRefusals(t *testing.T) {
	port := echo(t)
	h := start(t, 1, allow(port), allow(1))
	stream := h.hold(t)
	for i, c := range []struct {
		host   string
		port   uint32
		reason agentv1.EgressRefusalReason
		text   string
	}{
		{"evil.test", 443, agentv1.EgressRefusalReason_EGRESS_REFUSAL_REASON_DENIED, `hosts: ["evil.test"]`},
		{"ok.example", 99, agentv1.EgressRefusalReason_EGRESS_REFUSAL_REASON_DENIED, "only at"},
		{"a b", 80, agentv1.EgressRefusalReason_EGRESS_REFUSAL_REASON_DENIED, "denied"},
		{"ok.example", 0, agentv1.EgressRefusalReason_EGRESS_REFUSAL_REASON_DENIED, "1 to 65535"},
		{"unknown.example", port, agentv1.EgressRefusalReason_EGRESS_REFUSAL_REASON_UNREACHABLE, "could not be reached"},
		{"127.0.0.1", 1, agentv1.EgressRefusalReason_EGRESS_REFUSAL_REASON_UNREACHABLE, "could not be reached"},
	} {
		announce(t, stream, uint64(i), c.host, c.port)
		r := refusal(t, stream)
		if r.GetId() != uint64(i) || r.GetReason() != c.reason || !strings.Contains(r.GetMessage(), c.text) {
			t.Errorf("%s:%d: %v", c.host, c.port, r)
		}
		if e := next(t, h.ended); e.Err == nil || e.Addr != "" {
			t.Errorf("%s: %+v", c.host, e)
		}
	}
	announce(t, stream, 100, "127.0.0.1", port)
	first := next(t, h.carried)
	announce(t, stream, 101, "127.0.0.1", port)
	if r := refusal(t, stream); r.GetId() != 101 || r.GetReason() != agentv1.EgressRefusalReason_EGRESS_REFUSAL_REASON_LIMIT {
		t.Errorf("beyond the limit: %v", r)
	}
	if e := next(t, h.ended); !errors.Is(e.Err, ErrLimit) {
		t.Errorf("%+v", e)
	}
	close(first.done) // breaks the connection
	if e := next(t, h.ended); e.Err == nil || e.Addr == "" {
		t.Errorf("%+v", e)
	}
	announce(t, stream, 102, "127.0.0.1", port)
	close(next(t, h.carried).done)
}

// Beyond the bound of all sandboxes together a connection is refused, with that reason,
// and each that ends makes room for another.
func TestSharedLimitRefusesAndMakesRoom(t *testing.T) {
	port := echo(t)
	h := start(t, 100, allow(port))
	stream := h.hold(t)
	var open []carried
	for i := range uint64(maxShared) {
		announce(t, stream, i, "127.0.0.1", port)
		open = append(open, next(t, h.carried))
	}
	announce(t, stream, 100, "127.0.0.1", port)
	if r := refusal(t, stream); r.GetReason() != agentv1.EgressRefusalReason_EGRESS_REFUSAL_REASON_LIMIT || !strings.Contains(r.GetMessage(), "for this tenant or for all") {
		t.Errorf("beyond the limit: %v", r)
	}
	if e := next(t, h.ended); !errors.Is(e.Err, ErrSharedLimit) || e.Addr != "" {
		t.Errorf("%+v", e)
	}
	close(open[0].done)
	next(t, h.ended)
	announce(t, stream, 101, "127.0.0.1", port)
	if c := next(t, h.carried); c.id != 101 {
		t.Errorf("id %d", c.id)
	}
}

func TestQuestions(t *testing.T) {
	h := start(t, 1, allow(443), allow(8080))
	stream := h.hold(t)
	for host, want := range map[string]int{"a.example": 2, "evil.test": 0, "": 0, "127.0.0.1": 0} {
		if err := stream.Send(&agentv1.AcceptEgressResponse{Message: &agentv1.AcceptEgressResponse_Question{
			Question: &agentv1.EgressQuestion{Id: 3, Host: host},
		}}); err != nil {
			t.Fatal(err)
		}
		m, err := stream.Recv()
		if err != nil || m.GetAnswer().GetId() != 3 || len(m.GetAnswer().GetPorts()) != want {
			t.Errorf("%q: %v %v", host, m, err)
		}
	}
	for range 2 { // not the address, which is allowed at a port
		if e := next(t, h.ended); e.Err == nil {
			t.Errorf("a record of %+v", e)
		}
	}
}

// New rules cut what they do not allow, and only that.
func TestUpdateCutsOnlyWhatNewRulesForbid(t *testing.T) {
	one, two := echo(t), echo(t)
	h := start(t, 4, allow(one), allow(two))
	stream := h.hold(t)
	announce(t, stream, 1, "ok.example", one)
	cut := next(t, h.carried)
	announce(t, stream, 2, "ok.example", two)
	kept := next(t, h.carried)
	h.carrier.Update(t.Context(), h.setRules(t, allow(two)))
	<-cut.stream.Context().Done()
	if e := next(t, h.ended); e.Err == nil {
		t.Errorf("the cut one: %+v", e)
	}
	announce(t, stream, 3, "ok.example", one)
	if r := refusal(t, stream); r.GetReason() != agentv1.EgressRefusalReason_EGRESS_REFUSAL_REASON_DENIED {
		t.Errorf("a new connection: %v", r)
	}
	if err := errors.Join(kept.stream.Send(data("x")), kept.stream.Send(eof())); err != nil {
		t.Fatal(err)
	}
	if got := kept.read(t); got != "echo x" {
		t.Errorf("the other one: %q", got)
	}
	close(kept.done)
}

// A sandbox that cannot be looked up when the configuration changes has no connection,
// until its stream is opened again.
func TestSandboxThatCannotBeLookedUpHasNoConnection(t *testing.T) {
	port := echo(t)
	h := start(t, 4, allow(port))
	stream := h.hold(t)
	announce(t, stream, 1, "ok.example", port)
	next(t, h.carried)
	h.mu.Lock()
	h.fail = errors.New("the provider does not answer")
	h.mu.Unlock()
	h.carrier.Refresh(t.Context())
	if e := next(t, h.ended); e.Err == nil {
		t.Errorf("the open connection: %+v", e)
	}
	stream = next(t, h.accepted)
	announce(t, stream, 2, "ok.example", port)
	if c := next(t, h.carried); c.id != 2 {
		t.Errorf("id %d", c.id)
	}
}

// An agent that ends its stream, and keeps its connection, does not get back the
// rules that the sandbox had when it connected. Nor does an update that comes late
// bring back rules that another has replaced.
func TestReopenedStreamDoesNotGetOldRules(t *testing.T) {
	h := start(t, 4, allow(443))
	stream := h.hold(t)
	old := h.setRules(t, allow(443))
	h.carrier.Update(t.Context(), h.setRules(t, allow(80)))
	h.carrier.Update(t.Context(), old)
	for _, why := range []string{"a late update", "a new stream"} {
		announce(t, stream, 1, "ok.example", 443)
		if r := refusal(t, stream); r.GetReason() != agentv1.EgressRefusalReason_EGRESS_REFUSAL_REASON_DENIED {
			t.Errorf("after %s: %v", why, r)
		}
		if why == "a late update" {
			h.hangUp <- struct{}{}
			stream = next(t, h.accepted)
		}
	}
}

// A stream that breaks is opened again, and its connections end.
func TestBrokenAgentStreamIsReopened(t *testing.T) {
	port := echo(t)
	h := start(t, 4, allow(port))
	stream := h.hold(t)
	announce(t, stream, 1, "ok.example", port)
	next(t, h.carried)
	for _, conn := range h.carrier.cfg.Agents.Live() {
		conn.Cut()
	}
	if e := next(t, h.ended); e.Err == nil {
		t.Errorf("%+v", e)
	}
	announce(t, next(t, h.accepted), 1, "ok.example", port)
	close(next(t, h.carried).done)
}

// A holder leaves when its sandbox is gone, and comes back with Hold.
func TestHolderLeavesWhenItsSandboxIsGone(t *testing.T) {
	h := start(t, 4, allow(1))
	h.hold(t)
	h.delete()
	for _, conn := range h.carrier.cfg.Agents.Live() {
		conn.Cut()
	}
	deadline := time.Now().Add(wait)
	for held := true; held && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		h.carrier.mu.Lock()
		held = len(h.carrier.holders) > 0
		h.carrier.mu.Unlock()
	}
	h.mu.Lock()
	h.gone = false
	h.mu.Unlock()
	h.hold(t)
}

// TestServerHoldsItsShareOfSandboxes: a server holds what is its own, applies rules that another server has
// changed, and leaves what became another's once nothing is open.
func TestServerHoldsItsShareOfSandboxes(t *testing.T) {
	port := echo(t)
	h := start(t, 4, allow(port))
	h.carrier.handover = 0
	own := true
	share := func() {
		t.Helper()
		info, err := h.Get(t.Context(), key.Name)
		if err != nil {
			t.Fatal(err)
		}
		h.carrier.Share(t.Context(), []providers.Info{info}, func(name string) bool { return own && name == key.Name })
	}
	share()
	stream := next(t, h.accepted)
	announce(t, stream, 1, "127.0.0.1", port)
	c := next(t, h.carried)
	own = false
	share()
	share()
	announce(t, stream, 2, "127.0.0.1", port)
	second := next(t, h.carried) // it has a connection, so it is still held
	close(c.done)
	next(t, h.ended)

	h.setRules(t, allow(1))
	share()
	if e := next(t, h.ended); e.Err == nil {
		t.Errorf("the new rules left an open connection: %+v", e)
	}
	close(second.done)
	announce(t, stream, 3, "127.0.0.1", port)
	if r := refusal(t, stream); r.GetReason() != agentv1.EgressRefusalReason_EGRESS_REFUSAL_REASON_DENIED {
		t.Errorf("the new rules: %v", r)
	}
	share()
	if _, err := stream.Recv(); err == nil {
		t.Error("it is still held")
	}
	own = true
	share()
	next(t, h.accepted)
}

func TestOwner(t *testing.T) {
	three := []string{"a", "b", "c"}
	count := map[string]int{}
	for i := range 3000 {
		name := fmt.Sprintf("sg-%d", i)
		owner := Owner(three, name)
		count[owner]++
		if rest := slices.DeleteFunc(slices.Clone(three), func(m string) bool { return m == "c" }); owner != "c" && Owner(rest, name) != owner {
			t.Fatalf("%s moved though its server lives", name)
		}
	}
	for _, member := range three {
		if count[member] < 800 {
			t.Errorf("%s has %d of 3000", member, count[member])
		}
	}
	if got := Owner(nil, "x"); got != "" {
		t.Errorf("without members: %q", got)
	}
}

func TestOtherNetworkMode(t *testing.T) {
	h := start(t, 4)
	h.info.Spec.Network = providers.NetworkNone
	h.carrier.Hold(key)
	deadline := time.Now().Add(wait)
	for {
		h.carrier.mu.Lock()
		held := len(h.carrier.holders)
		h.carrier.mu.Unlock()
		if held == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("it is held")
		}
		time.Sleep(time.Millisecond)
	}
}

// An agent that announces without end gets refusals, of which few are recorded, at
// a bounded pace. So it is with allowed names that do not exist.
func TestDenialsAreRecordedAtABoundedPace(t *testing.T) {
	h := start(t, 1, allow(443))
	stream := h.hold(t)
	const n = 200
	for i := range uint64(n) {
		announce(t, stream, i, []string{"evil.test", "missing.example"}[i%2], 443)
		if r := refusal(t, stream); r.GetId() != i {
			t.Fatalf("%d: %v", i, r)
		}
	}
	recorded := 0
	for range n {
		e := next(t, h.ended)
		if e.Err == nil || e.Addr != "" {
			t.Fatalf("%+v", e)
		}
		if !e.Unrecorded {
			recorded++
		}
	}
	if recorded < denialsBurst || recorded > denialsBurst+60*denialsPerSecond {
		t.Errorf("%d of %d were recorded", recorded, n)
	}
}
