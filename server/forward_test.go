package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/audit"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/names"
	"github.com/sandgate/sandgate/streaming"
)

func opened(incarnation string, port int32) *sandboxv1.ForwardResponse {
	return &sandboxv1.ForwardResponse{Payload: &sandboxv1.ForwardResponse_Opened{Opened: &sandboxv1.ForwardOpened{
		Incarnation: incarnation, Address: fmt.Sprintf("127.0.0.1:%d", port)}}}
}

func data(b []byte) *sandboxv1.ForwardResponse {
	return &sandboxv1.ForwardResponse{Payload: &sandboxv1.ForwardResponse_Data{Data: b}}
}

func eof() *sandboxv1.ForwardResponse {
	return &sandboxv1.ForwardResponse{Payload: &sandboxv1.ForwardResponse_Eof{Eof: &sandboxv1.ForwardEof{}}}
}

// Messages of a caller.
func forwardStart(s *sandboxv1.ForwardStart) *sandboxv1.ForwardRequest {
	return &sandboxv1.ForwardRequest{Payload: &sandboxv1.ForwardRequest_Start{Start: s}}
}

func forwardData(b []byte) *sandboxv1.ForwardRequest {
	return &sandboxv1.ForwardRequest{Payload: &sandboxv1.ForwardRequest_Data{Data: b}}
}

func forwardEOF() *sandboxv1.ForwardRequest {
	return &sandboxv1.ForwardRequest{Payload: &sandboxv1.ForwardRequest_Eof{Eof: &sandboxv1.ForwardEof{}}}
}

var startA = forwardStart(&sandboxv1.ForwardStart{SandboxId: "a", Port: 80})

// forwardStream is an agent's side of a Forward.
type forwardStream = grpc.BidiStreamingServer[sandboxv1.ForwardRequest, sandboxv1.ForwardResponse]

type forwardCall = grpc.BidiStreamingClient[sandboxv1.ForwardRequest, sandboxv1.ForwardResponse]

// forward sends messages and, if all is true, ends the caller's stream.
func (h *harness) forward(ctx context.Context, all bool, messages ...*sandboxv1.ForwardRequest) forwardCall {
	h.t.Helper()
	call, err := h.client.Forward(ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, m := range messages {
		if err := call.Send(m); err != nil && !errors.Is(err, io.EOF) {
			h.t.Fatal(err)
		}
	}
	if all {
		if err := call.CloseSend(); err != nil {
			h.t.Fatal(err)
		}
	}
	return call
}

// end receives everything up to the call's end.
func end(call forwardCall) ([]*sandboxv1.ForwardResponse, error) {
	var all []*sandboxv1.ForwardResponse
	for {
		m, err := call.Recv()
		if err != nil {
			return all, err
		}
		all = append(all, m)
	}
}

func TestForward(t *testing.T) {
	records := make(auditList, 16)
	h := newHarness(t, func(c *Config) { c.Audit = records })
	info := h.create("a")
	content := bytes.Repeat([]byte("x"), streaming.LargeChunk)
	got, err := end(h.forward(t.Context(), true, startA, forwardData(content), forwardEOF()))
	if !errors.Is(err, io.EOF) || len(got) != 3 || got[0].GetOpened().GetIncarnation() != info.GetIncarnation() ||
		got[0].GetOpened().GetAddress() != "127.0.0.1:80" || !bytes.Equal(got[1].GetData(), content) || got[2].GetEof() == nil {
		t.Fatalf("%d messages, %v", len(got), err)
	}
	for r := range records {
		if r.Operation != "Forward" {
			continue
		}
		if r.SandboxID != "a" || r.Address != "localhost:80" {
			t.Errorf("%+v", r)
		}
		if r.Phase == audit.Ended {
			if r.Bytes != 2*streaming.LargeChunk || r.Code != "OK" {
				t.Errorf("%+v", r)
			}
			break
		}
	}
}

func TestForwardCallerOrder(t *testing.T) {
	h := newHarness(t, nil)
	h.create("a")
	large := make([]byte, streaming.LargeChunk+1)
	for name, c := range map[string]struct {
		want     string
		messages []*sandboxv1.ForwardRequest
	}{
		"nothing":             {"REQUEST_INVALID", nil},
		"data first":          {"REQUEST_INVALID", []*sandboxv1.ForwardRequest{forwardData([]byte("x"))}},
		"no payload":          {"REQUEST_INVALID", []*sandboxv1.ForwardRequest{{}}},
		"a second start":      {"REQUEST_INVALID", []*sandboxv1.ForwardRequest{startA, startA}},
		"empty data":          {"REQUEST_INVALID", []*sandboxv1.ForwardRequest{startA, forwardData(nil)}},
		"large data":          {"MESSAGE_TOO_LARGE", []*sandboxv1.ForwardRequest{startA, forwardData(large)}},
		"an empty message":    {"REQUEST_INVALID", []*sandboxv1.ForwardRequest{startA, {}}},
		"no eof":              {"CALL_CANCELLED", []*sandboxv1.ForwardRequest{startA, forwardData([]byte("x"))}},
		"another incarnation": {"SANDBOX_REPLACED", []*sandboxv1.ForwardRequest{forwardStart(&sandboxv1.ForwardStart{SandboxId: "a", Port: 80, ExpectedIncarnation: "other"})}},
		"no such sandbox":     {"SANDBOX_NOT_FOUND", []*sandboxv1.ForwardRequest{forwardStart(&sandboxv1.ForwardStart{SandboxId: "b", Port: 80})}},
		"no sandbox":          {"REQUEST_INVALID", []*sandboxv1.ForwardRequest{forwardStart(&sandboxv1.ForwardStart{Port: 80})}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := end(h.forward(t.Context(), true, c.messages...))
			wantReason(t, err, c.want)
		})
	}
	// What follows eof is refused while the agent still sends.
	h.sandbox("a").agent.forward = func(stream forwardStream) error {
		err := stream.Send(opened(h.sandbox("a").agent.incarnation, 80))
		<-stream.Context().Done()
		return err
	}
	_, err := end(h.forward(t.Context(), false, startA, forwardEOF(), forwardData([]byte("x"))))
	wantReason(t, err, "REQUEST_INVALID")
}

// TestForwardAgentMisbehaves: what an agent sends out of order is not forwarded.
func TestForwardAgentMisbehaves(t *testing.T) {
	x := []byte("x")
	for name, messages := range map[string]func(incarnation string) []*sandboxv1.ForwardResponse{
		"nothing":             func(string) []*sandboxv1.ForwardResponse { return nil },
		"data first":          func(string) []*sandboxv1.ForwardResponse { return []*sandboxv1.ForwardResponse{data(x)} },
		"an empty message":    func(i string) []*sandboxv1.ForwardResponse { return []*sandboxv1.ForwardResponse{opened(i, 80), {}} },
		"another port":        func(i string) []*sandboxv1.ForwardResponse { return []*sandboxv1.ForwardResponse{opened(i, 81)} },
		"another incarnation": func(string) []*sandboxv1.ForwardResponse { return []*sandboxv1.ForwardResponse{opened("other", 80)} },
		"another address": func(i string) []*sandboxv1.ForwardResponse {
			m := opened(i, 80)
			m.GetOpened().Address = "10.0.0.1:80"
			return []*sandboxv1.ForwardResponse{m}
		},
		"opened twice": func(i string) []*sandboxv1.ForwardResponse {
			return []*sandboxv1.ForwardResponse{opened(i, 80), opened(i, 80)}
		},
		"empty data": func(i string) []*sandboxv1.ForwardResponse {
			return []*sandboxv1.ForwardResponse{opened(i, 80), data(nil)}
		},
		"large data": func(i string) []*sandboxv1.ForwardResponse {
			return []*sandboxv1.ForwardResponse{opened(i, 80), data(make([]byte, streaming.MaxChunk+1))}
		},
		"data after eof": func(i string) []*sandboxv1.ForwardResponse {
			return []*sandboxv1.ForwardResponse{opened(i, 80), eof(), data(x)}
		},
		"no eof": func(i string) []*sandboxv1.ForwardResponse {
			return []*sandboxv1.ForwardResponse{opened(i, 80), data(x)}
		},
		// The caller has not ended its direction, and may take OK for the program's having
		// read everything.
		"the end before the caller's": func(i string) []*sandboxv1.ForwardResponse {
			return []*sandboxv1.ForwardResponse{opened(i, 80), data(x), eof()}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, nil)
			h.create("a")
			agent := h.sandbox("a").agent
			agent.forward = func(stream forwardStream) error {
				for _, m := range messages(agent.incarnation) {
					if err := stream.Send(m); err != nil {
						return err
					}
				}
				return nil
			}
			got, err := end(h.forward(t.Context(), false, startA))
			wantReason(t, err, "AGENT_MISBEHAVED")
			if len(got) > 3 {
				t.Errorf("%d messages came", len(got))
			}
		})
	}
}

// The agent's own errors reach the caller, after everything that it sent before.
func TestAgentErrorsFollowForwardedData(t *testing.T) {
	h := newHarness(t, nil)
	h.create("a")
	agent := h.sandbox("a").agent
	for _, reason := range []string{"PORT_CLOSED", "CONNECTION_RESET", "TOO_MANY_CONNECTIONS", "SANDBOX_NOT_ACTIVE"} {
		agent.forward = func(stream forwardStream) error {
			return errors.Join(stream.Send(opened(agent.incarnation, 80)), stream.Send(data([]byte("last"))),
				agentStatus(codes.Aborted, reason, "from the agent"))
		}
		got, err := end(h.forward(t.Context(), false, startA))
		wantReason(t, err, reason)
		if len(got) != 2 || string(got[1].GetData()) != "last" {
			t.Errorf("%s: %v", reason, got)
		}
	}
}

// open returns a call that has carried data.
func (h *harness) open(ctx context.Context) forwardCall {
	h.t.Helper()
	call := h.forward(ctx, false, startA, forwardData([]byte("x")))
	for range 2 {
		if _, err := call.Recv(); err != nil {
			h.t.Fatal(err)
		}
	}
	return call
}

func TestForwardIsActivityWithData(t *testing.T) {
	h := newHarness(t, nil)
	h.create("a")
	conn := h.server.agents.Peek(names.Substrate(call.DefaultTenant, "a"))
	call := h.open(t.Context())
	if conn.InUse() {
		t.Error("an open connection without data is in use")
	}
	before := conn.LastCall()
	if err := call.Send(forwardData([]byte("y"))); err != nil {
		t.Fatal(err)
	}
	if _, err := call.Recv(); err != nil {
		t.Fatal(err)
	}
	if conn.LastCall() <= before {
		t.Error("data is no activity")
	}
	h.server.agents.CloseIdle(time.Now().Add(time.Hour))
	if err := call.Send(forwardEOF()); err != nil {
		t.Fatal(err)
	}
	if got, err := end(call); !errors.Is(err, io.EOF) || len(got) != 1 {
		t.Errorf("an idle connection to the agent was closed under it: %v, %v", got, err)
	}
}

// TestCallerLearnsWhyAForwardEnded: whatever ends an open connection, the caller gets the reason.
func TestCallerLearnsWhyAForwardEnded(t *testing.T) {
	var revoked atomic.Bool
	for name, c := range map[string]struct {
		end  func(h *harness) error
		want string
	}{
		"the connection to the agent breaks": {func(h *harness) error { h.sandbox("a").cut(); return nil }, "AGENT_UNAVAILABLE"},
		"the sandbox is deleted": {func(h *harness) error {
			_, err := h.client.DeleteSandbox(h.t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: "a"})
			return err
		}, "SANDBOX_NOT_FOUND"},
		"the server stops":            {func(h *harness) error { return h.server.Shutdown(h.t.Context()) }, "SERVER_SHUTTING_DOWN"},
		"the credentials are revoked": {func(*harness) error { revoked.Store(true); return nil }, "CREDENTIALS_INVALID"},
	} {
		t.Run(name, func(t *testing.T) {
			revoked.Store(false)
			h := newHarness(t, func(c *Config) {
				c.Timing.Recheck = 10 * time.Millisecond
				c.Authenticator = changing{func() (authn.Principal, error) {
					if revoked.Load() {
						return authn.Principal{}, authn.ErrUnknownCredentials
					}
					return authn.Principal{Name: "ann", Tenant: call.DefaultTenant}, nil
				}}
			})
			h.create("a")
			call := h.open(t.Context())
			failed := make(chan error, 1)
			go func() { failed <- c.end(h) }()
			_, err := end(call)
			wantReason(t, err, c.want)
			if err := <-failed; err != nil {
				t.Error(err)
			}
		})
	}
}

// A caller that sends no first message, or not all of it, holds a slot.
func TestForwardsThatHaveNotBegunAreBounded(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.Limits.MaxForwards = 1 })
	ctx, cancel := context.WithCancel(t.Context())
	refused := func() bool {
		_, err := end(h.forward(t.Context(), false, forwardStart(&sandboxv1.ForwardStart{SandboxId: "none", Port: 80})))
		_, why := reason(t, err)
		return why == "TOO_MANY_CONNECTIONS"
	}
	h.until("it has the slot", func() bool {
		// Of two calls at once, that which arrives first has it.
		if _, err := h.client.Forward(ctx); err != nil {
			t.Fatal(err)
		}
		return refused()
	})
	cancel()
	h.until("there is room after its end", func() bool { return !refused() })
}

// The open connections of a server are bounded, and a tenant holds a quarter of them.
// Each that ends, for whatever reason, makes room for another.
func TestForwardsAreBoundedPerTenant(t *testing.T) {
	var tenant atomic.Value
	tenant.Store("team")
	h := newHarness(t, func(c *Config) {
		c.Limits.MaxForwards = 8
		c.Timing.Recheck = time.Hour
		c.Authenticator = changing{func() (authn.Principal, error) {
			return authn.Principal{Name: "ann", Tenant: tenant.Load().(string), Role: authn.RoleUser}, nil
		}}
	})
	h.create("a")
	ctx, cancel := context.WithCancelCause(t.Context())
	h.open(ctx)
	second := h.open(t.Context())
	_, err := end(h.forward(t.Context(), false, startA))
	wantReason(t, err, "TOO_MANY_CONNECTIONS")

	tenant.Store("other")
	h.create("a")
	_, err = end(h.forward(t.Context(), false, forwardStart(&sandboxv1.ForwardStart{SandboxId: "none", Port: 80})))
	wantReason(t, err, "SANDBOX_NOT_FOUND")
	h.open(t.Context())
	h.open(t.Context())

	tenant.Store("team")
	if err := second.Send(forwardEOF()); err != nil {
		t.Fatal(err)
	}
	if _, err := end(second); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	h.open(t.Context())
	cancel(nil)
	h.until("there is room after a cancelled call", func() bool {
		call := h.forward(t.Context(), false, startA)
		_, err := call.Recv()
		return err == nil
	})
}
