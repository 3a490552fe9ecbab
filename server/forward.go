package server

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
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/policy"
)

// Forward implements SandboxService. Once it is open nothing resumes it: neither side
// knows what the other has received.
func (s *Server) Forward(stream grpc.BidiStreamingServer[sandboxv1.ForwardRequest, sandboxv1.ForwardResponse]) error {
	ctx := stream.Context()
	c := callOf(ctx)
	start, err := s.forwardStart(stream, c)
	if err != nil {
		return err
	}
	key := keyOf(ctx, start.GetSandboxId())
	if !s.forwards.tryTake(key.Tenant) {
		return fault.New(sandboxv1.ErrorReason_ERROR_REASON_TOO_MANY_CONNECTIONS,
			"this server has as many open connections to sandboxes as it may have, for your tenant or for all; close some").
			With("limit", strconv.Itoa(s.forwards.perTenant))
	}
	defer s.forwards.release(key.Tenant)
	retry := agentconn.RetryWindow{Length: s.cfg.Timing.Reattach}
	for {
		opened, err := s.forward(ctx, key, start, stream)
		switch {
		case err == nil:
			return nil
		case opened && errors.Is(err, agentconn.ErrBroken) && !s.isStopping() && ctx.Err() == nil:
			return s.connectionLost(ctx, key, err)
		case s.isStopping() || opened || !retry.Wait(ctx, err):
			return s.finalError(ctx, err)
		}
	}
}

// forwardStart receives and checks the first message.
func (s *Server) forwardStart(stream grpc.BidiStreamingServer[sandboxv1.ForwardRequest, sandboxv1.ForwardResponse], c *call) (*sandboxv1.ForwardStart, error) {
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
	if err := s.begin(stream.Context(), c, start); err != nil {
		return nil, err
	}
	v.SandboxID(start.GetSandboxId())
	v.LoopbackHost("start.host", start.GetHost())
	v.Port("start.port", start.GetPort())
	return start, v.Err()
}

// forward makes one attempt. It reports whether the caller has received `opened`.
func (s *Server) forward(ctx context.Context, key agentconn.Key, start *sandboxv1.ForwardStart, caller grpc.ServerStream) (opened bool, err error) {
	conn, err := s.acquire(ctx, key, start.GetExpectedIncarnation())
	if err != nil {
		return false, err
	}
	defer conn.EndInspection()
	conn.Hold()
	up, cancel := s.agentContext(ctx)
	defer cancel(nil)
	agent, err := conn.OpenBidi(up, agentv1.AgentService_Forward_FullMethodName)
	if err == nil {
		err = openForward(agent, conn, start, caller)
		opened = err == nil
	}
	if err == nil {
		c := callOf(ctx)
		relay := agentconn.Relay{Caller: caller, Agent: agent, Cancel: cancel, OnData: func(n int) {
			c.bytes.Add(int64(n))
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
func (s *Server) connectionLost(ctx context.Context, key agentconn.Key, err error) error {
	info, lookup := s.agents.Lookup(ctx, key)
	switch {
	case lookup == nil && info.State != providers.StateActive:
		return fault.NotActive(info)
	case errors.Is(lookup, providers.ErrNotFound):
		return s.notFoundReason(key, lookup)
	default:
		return s.finalError(ctx, err)
	}
}
