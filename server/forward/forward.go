// Package forward implements Forward, which connects a caller to a port of a sandbox.
package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"

	"google.golang.org/grpc"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentcall"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/audit"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/limit"
	"github.com/sandgate/sandgate/server/policy"
)

// Service implements the call Forward of SandboxService. Make one with New.
type Service struct {
	router *agentcall.Router
	agents *agentconn.Set
	audit  *audit.Recorder
	slots  *limit.Shared
}

// New returns a Service. The slots bound the open connections.
func New(r *agentcall.Router, agents *agentconn.Set, w *audit.Recorder, slots *limit.Shared) *Service {
	return &Service{router: r, agents: agents, audit: w, slots: slots}
}

// Forward implements SandboxService. Once it is open nothing resumes it: neither side
// knows what the other has received.
func (s *Service) Forward(stream grpc.BidiStreamingServer[sandboxv1.ForwardRequest, sandboxv1.ForwardResponse]) error {
	ctx := stream.Context()
	c := call.Of(ctx)
	tenant := c.Principal.Tenant
	// The slot is taken first: a caller need not send the first message, or all of it.
	if !s.slots.TryTake(tenant) {
		return fault.New(sandboxv1.ErrorReason_ERROR_REASON_TOO_MANY_CONNECTIONS,
			"this server has as many open connections to sandboxes as it may have, for your tenant or for all; close some").
			With("limit", strconv.Itoa(s.slots.PerTenant()))
	}
	defer s.slots.Release(tenant)
	start, err := s.forwardStart(stream, c)
	if err != nil {
		return err
	}
	key := agentcall.KeyOf(ctx, start.GetSandboxId())
	retry := s.router.Retry()
	for {
		opened, err := s.forward(ctx, key, start, stream)
		switch {
		case err == nil:
			return nil
		case opened && errors.Is(err, agentconn.ErrBroken) && !s.router.Stopping() && ctx.Err() == nil:
			return s.connectionLost(ctx, key, err)
		case s.router.Stopping() || opened || !retry.Wait(ctx, err):
			return s.router.FinalError(ctx, err)
		}
	}
}

// forwardStart receives and checks the first message.
func (s *Service) forwardStart(stream grpc.BidiStreamingServer[sandboxv1.ForwardRequest, sandboxv1.ForwardResponse], c *call.Call) (*sandboxv1.ForwardStart, error) {
	var v policy.Violations
	first, err := stream.Recv()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	start := first.GetStart()
	if start == nil {
		v.Add("payload", "the first message must be start")
		return nil, v.Err()
	}
	if err := c.Begin(stream.Context(), s.audit, start); err != nil {
		return nil, err
	}
	v.SandboxID(start.GetSandboxId())
	v.LoopbackHost("start.host", start.GetHost())
	v.Port("start.port", start.GetPort())
	return start, v.Err()
}

// forward makes one attempt. It reports whether the caller has received `opened`.
func (s *Service) forward(ctx context.Context, key agentconn.Key, start *sandboxv1.ForwardStart, caller grpc.ServerStream) (opened bool, err error) {
	conn, err := s.router.Acquire(ctx, key, start.GetExpectedIncarnation())
	if err != nil {
		return false, err
	}
	defer conn.EndInspection()
	conn.Hold()
	up, cancel := s.router.StreamContext(ctx)
	defer cancel(nil)
	agent, err := conn.OpenBidi(up, agentv1.AgentService_Forward_FullMethodName)
	if err == nil {
		err = openForward(agent, conn, start, caller)
		opened = err == nil
	}
	if err == nil {
		c := call.Of(ctx)
		relay := agentconn.Relay{Caller: caller, Agent: agent, Cancel: cancel, OnData: func(n int) {
			c.Bytes.Add(int64(n))
			conn.Touch()
		}}
		err = relay.Run()
	}
	return opened, conn.Error(up, err)
}

// openForward sends `start` to the agent and its answer to the caller.
func openForward(agent grpc.ClientStream, conn *agentconn.Conn, start *sandboxv1.ForwardStart, caller grpc.ServerStream) error {
	err := agent.SendMsg(&sandboxv1.ForwardRequest{Payload: &sandboxv1.ForwardRequest_Start{Start: start}})
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	var fr agentconn.Frame
	if err := agent.RecvMsg(&fr); err != nil {
		if errors.Is(err, io.EOF) {
			return fault.Misbehaved("a connection that ended before it was opened")
		}
		return err
	}
	var m sandboxv1.ForwardResponse
	err = fr.Decode(&m)
	fr.Free()
	if err == nil {
		err = checkOpened(m.GetOpened(), conn, start)
	}
	if err != nil {
		return fault.Misbehaved("%w", err)
	}
	if err := caller.SendMsg(&m); err != nil {
		return &agentconn.CallerError{Err: err}
	}
	return nil
}

func checkOpened(o *sandboxv1.ForwardOpened, conn *agentconn.Conn, start *sandboxv1.ForwardStart) error {
	addr, err := netip.ParseAddrPort(o.GetAddress())
	switch {
	case err != nil:
		return fmt.Errorf("connected to %q", fault.Bounded(o.GetAddress()))
	case !addr.Addr().IsLoopback() || addr.Addr().Zone() != "" || int32(addr.Port()) != start.GetPort():
		return fmt.Errorf("connected to %s", addr)
	case o.GetIncarnation() != conn.Incarnation:
		return fmt.Errorf("connected in incarnation %q", fault.Bounded(o.GetIncarnation()))
	default:
		return nil
	}
}

// connectionLost returns why the connection to the agent broke under an open Forward: the
// sandbox's end, if the provider reports one.
func (s *Service) connectionLost(ctx context.Context, key agentconn.Key, err error) error {
	info, lookup := s.agents.Lookup(ctx, key)
	switch {
	case lookup == nil && info.State != providers.StateActive:
		return fault.NotActive(info)
	case errors.Is(lookup, providers.ErrNotFound):
		return s.router.NotFoundReason(key, lookup)
	default:
		return s.router.FinalError(ctx, err)
	}
}
