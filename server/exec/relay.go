package exec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/agentcall"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/metrics"
	"github.com/sandgate/sandgate/server/tracing"
	"github.com/sandgate/sandgate/streaming"
)

// relay forwards the events of one command to one caller, for Execute and
// Attach. If the connection to the agent breaks it reattaches at the caller's
// position, so that the caller only sees a delay.
type relay struct {
	s        *Service
	key      agentconn.Key
	expected string // incarnation, empty until one is known
	execID   string
	until    sandboxv1.FollowUntil
	out      grpc.ServerStream
	call     *call.Call
	// begin opens the first stream. Until the first event arrives it is called
	// again after a failure, and joins the command if that has started.
	begin func(ctx context.Context, c *agentconn.Conn) (grpc.ClientStream, error)

	// span is the command's for Execute, and the call's for Attach.
	span trace.Span
	// attached is true for Attach.
	attached bool

	started  bool  // the caller has received `started`
	position int64 // the end of the output that the caller has received
	retry    agentconn.RetryWindow
	brokenAt time.Time // zero while the connection works
	// since is when an Execute arrived.
	since time.Time
	// sending is when the present Send to the caller began, in nanoseconds since the
	// call did: a wall clock may be set meanwhile. 0: there is none.
	sending atomic.Int64
	// sendingAt is the position of the event that is being sent.
	sendingAt atomic.Int64
}

// run returns nil after the caller has received `exited`.
func (r *relay) run(ctx context.Context) error {
	r.retry = r.s.cfg.Router.Retry()
	for {
		err := r.follow(ctx)
		if err == nil {
			return nil
		}
		if r.s.cfg.Router.Stopping() || ctx.Err() != nil {
			return r.s.cfg.Router.FinalError(ctx, err)
		}
		exited, err := r.exitCause(ctx, err)
		if exited != nil {
			return r.sendExited(&sandboxv1.ExecuteResponse{}, exited)
		}
		if !agentconn.IsTransient(err) {
			return err
		}
		r.connectionBroke(err)
		if !r.retry.Wait(ctx, err) {
			r.reattached(metrics.ReattachFailed)
			return r.s.cfg.Router.FinalError(ctx, err)
		}
	}
}

// runDroppable is run for a reader that delays no command. It drops the reader
// if that receives nothing for too long.
func (r *relay) runDroppable(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := r.s.cfg.SlowReader
	done := make(chan error, 1)
	go func() { done <- fault.Catch(func() error { return r.run(ctx) }) }()
	tick := time.NewTicker(max(limit/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-tick.C:
			if began := r.sending.Load(); began != 0 && time.Since(r.call.Start)-time.Duration(began) >= limit {
				at := r.sendingAt.Load()
				err := fault.New(sandboxv1.ErrorReason_ERROR_REASON_READER_TOO_SLOW,
					"the reader received nothing for %s; attach again from position %d", limit, at).
					With("position", fmt.Sprint(at))
				// The blocked Send returns when this handler has.
				cancel(err)
				return err
			}
		}
	}
}

// follow opens one stream to the agent and forwards its events until it ends.
func (r *relay) follow(ctx context.Context) error {
	c, err := r.s.cfg.Router.Acquire(ctx, r.key, r.expected)
	if err != nil {
		return err
	}
	defer agentcall.Release(ctx, c)
	r.expected = c.Incarnation
	up, cancel := r.s.cfg.Router.StreamContext(ctx)
	defer cancel(nil)

	open := r.reattach
	if !r.started {
		open = r.begin
	}
	stream, err := open(up, c)
	if err == nil {
		err = r.forward(stream, c, func() { cancel(nil) })
	}
	return c.Error(up, err)
}

func (r *relay) reattach(ctx context.Context, c *agentconn.Conn) (grpc.ClientStream, error) {
	req := &sandboxv1.AttachRequest{
		SandboxId: r.key.ID, ExecId: r.execID, Position: r.position,
		FollowUntil: r.until, ExpectedIncarnation: r.expected,
	}
	ctx, _, err := r.s.cfg.Router.WithCallContext(ctx, c, req)
	if err != nil {
		return nil, err
	}
	return c.OpenStream(ctx, agentv1.AgentService_Attach_FullMethodName, req)
}

// forward checks and forwards the events of one stream. It returns nil once it
// has forwarded `exited` and the stream has ended.
func (r *relay) forward(in grpc.ClientStream, c *agentconn.Conn, cancel func()) error {
	seq := streaming.ResumeSequence(r.position)
	var fr agentconn.Frame
	for {
		if err := in.RecvMsg(&fr); err != nil {
			if errors.Is(err, io.EOF) {
				return fault.Misbehaved("a stream that ended without an end of the command")
			}
			return err
		}
		first := !r.started
		ended, err := r.event(&fr, &seq, c)
		fr.Free()
		if err != nil {
			return err
		}
		if first && r.attached && r.started {
			tracing.LinkCommand(r.span, in)
		}
		r.retry.Restart()
		r.reattached(metrics.ReattachSucceeded)
		if ended {
			return agentconn.ExpectEnd(in, cancel)
		}
	}
}

// connectionBroke logs that the connection under a running command broke.
func (r *relay) connectionBroke(err error) {
	if r.started && r.brokenAt.IsZero() {
		r.brokenAt = time.Now()
		r.s.cfg.Log.Info("connection to an agent broke", "tenant", r.key.Tenant, "sandbox_id", r.key.ID, "exec_id", r.execID, "error", err)
	}
}

// reattached logs and counts the outcome of reattaching, if the connection
// was broken.
func (r *relay) reattached(outcome string) {
	if r.brokenAt.IsZero() {
		return
	}
	r.s.cfg.Metrics.Reattachments.WithLabelValues(outcome).Inc()
	r.s.cfg.Log.Info("connection to an agent "+outcome, "tenant", r.key.Tenant, "sandbox_id", r.key.ID, "exec_id", r.execID,
		"took", time.Since(r.brokenAt))
	r.brokenAt = time.Time{}
}
