package server

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/wire"
)

// follower passes the events of one command on to one caller. When the way to
// the agent breaks it attaches again at the position that the caller has, so
// that the caller sees nothing but a delay.
type follower struct {
	s        *Server
	key      agentconn.Key
	expected string // incarnation, empty until one is known
	execID   string
	until    sandboxv1.FollowUntil
	out      grpc.ServerStream
	call     *call
	// begin opens the first stream; as long as no event has come it is asked
	// again, which joins the command if it was started.
	begin func(ctx context.Context, t *agentconn.Conn) (grpc.ClientStream, error)

	started  bool  // the caller has had `started`
	position int64 // what the caller has
	retry    agentconn.RetryWindow
	brokenAt time.Time // zero while the connection to the agent works
	// since is when an Execute came in.
	since time.Time
	// sending is when the present Send to the caller began, in unix
	// nanoseconds; 0 while there is none.
	sending atomic.Int64
	// at is the position of the frame that is being sent.
	at atomic.Int64
}

func (f *follower) reattach(ctx context.Context, t *agentconn.Conn) (grpc.ClientStream, error) {
	confinement, err := f.s.policy.Confine(t.Policies, nil)
	if err != nil {
		return nil, err
	}
	return t.OpenStream(ctx, agentv1.AgentService_Attach_FullMethodName, &agentv1.AttachRequest{
		Request: &sandboxv1.AttachRequest{
			SandboxId: f.key.ID, ExecId: f.execID, Position: f.position,
			FollowUntil: f.until, ExpectedIncarnation: f.expected,
		},
		Confinement: confinement, Limits: f.s.limits,
	})
}

// run returns nil when the caller has had `exited`, otherwise an error.
func (f *follower) run(ctx context.Context) error {
	f.retry.Length = f.s.cfg.Timing.Reattach
	for {
		err := f.follow(ctx)
		if err == nil {
			return nil
		}
		if f.s.isStopping() || ctx.Err() != nil {
			return f.s.broken(ctx, err)
		}
		done, err := f.fate(ctx, err)
		if done {
			return err
		}
		f.broke(err)
		if !f.retry.Wait(ctx, err) {
			f.mended(mendFailed)
			return f.s.broken(ctx, err)
		}
	}
}

// broke notes that the connection under a running command broke.
func (f *follower) broke(err error) {
	if f.started && f.brokenAt.IsZero() {
		f.brokenAt = time.Now()
		f.s.log.Info("connection to an agent broke", "tenant", f.key.Tenant, "sandbox_id", f.key.ID, "exec_id", f.execID, "error", err)
	}
}

// mended notes how that turned out.
func (f *follower) mended(outcome string) {
	if f.brokenAt.IsZero() {
		return
	}
	f.s.metrics.reattachments.WithLabelValues(outcome).Inc()
	f.s.log.Info("connection to an agent "+outcome, "tenant", f.key.Tenant, "sandbox_id", f.key.ID, "exec_id", f.execID,
		"took", time.Since(f.brokenAt))
	f.brokenAt = time.Time{}
}

// runDroppable is run for a reader that may be dropped when it takes nothing
// for too long: nothing waits for it but memory.
func (f *follower) runDroppable(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := f.s.cfg.Timing.SlowReader
	done := make(chan error, 1)
	go func() { done <- fault.Catch(func() error { return f.run(ctx) }) }()
	tick := time.NewTicker(max(limit/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err
		case now := <-tick.C:
			if since := f.sending.Load(); since != 0 && now.Sub(time.Unix(0, since)) >= limit {
				err := fault.New(sandboxv1.ErrorReason_ERROR_REASON_READER_TOO_SLOW,
					"nothing was taken for %s; attach again from position %d", limit, f.at.Load()).
					With("position", fmt.Sprint(f.at.Load()))
				// The Send that hangs returns when this handler has.
				cancel(err)
				return err
			}
		}
	}
}

// fate finds out, after an error, whether the command's end is certain. It
// reports true with what run must return, else the error to go by.
func (f *follower) fate(ctx context.Context, err error) (bool, error) {
	var flt *fault.Error
	if errors.As(err, &flt) && f.started {
		switch flt.Reason {
		case sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_REPLACED:
			return true, f.endOf("the sandbox lost its processes and was made anew", f.ending(ctx, endingPatience))
		case sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_NOT_FOUND, sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_EXPIRED:
			return true, f.end(sandboxv1.ExitReason_EXIT_REASON_SANDBOX_STOPPED, flt.Message)
		case sandboxv1.ErrorReason_ERROR_REASON_EXEC_NOT_FOUND:
			return true, f.end(sandboxv1.ExitReason_EXIT_REASON_LOST, "the sandbox's agent does not know the command any more")
		case sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_NOT_ACTIVE:
			return f.ended(ctx, flt)
		}
	}
	if f.started && errors.Is(err, providers.ErrNotActive) {
		// It ended between the look at it and the call. Another look tells more.
		return false, fault.AgentUnavailable(err)
	}
	return !agentconn.IsTransient(err), err
}

// ended is for a sandbox that is not active any more.
func (f *follower) ended(ctx context.Context, flt *fault.Error) (bool, error) {
	switch flt.Metadata[fault.MetaState] {
	case wire.StateName(providers.StateSuspended), wire.StateName(providers.StateDeleting):
		return true, f.end(sandboxv1.ExitReason_EXIT_REASON_SANDBOX_STOPPED, flt.Message)
	case wire.StateName(providers.StateFailed):
		if flt.Metadata[fault.MetaFailure] == fault.FailureOutOfMemory {
			return true, f.end(sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY, flt.Message)
		}
		return true, f.end(sandboxv1.ExitReason_EXIT_REASON_LOST, flt.Message)
	case wire.StateName(providers.StateCreating):
		// A substrate that makes it anew says so by another incarnation when it has.
		// One that only does not see its sandbox as ready, because a node or its
		// kubelet is away, brings the same one back.
		if e := f.ending(ctx, 0); e.Known {
			return true, f.endOf("the sandbox lost its processes", e)
		}
		return false, fault.AgentUnavailable(flt)
	default:
		return true, flt
	}
}

// endingPatience is for a substrate that has not noticed how an incarnation
// ended, and endingPause is between two looks.
const (
	endingPatience = 5 * time.Second
	endingPause    = 200 * time.Millisecond
	// endReportTimeout bounds the look for it.
	endReportTimeout = 20 * time.Second
)

// ending is how the incarnation ended in which the command ran. It waits for a
// substrate that has not noticed yet.
func (f *follower) ending(ctx context.Context, patience time.Duration) providers.Ending {
	h, ok := f.s.provider.(providers.EndReporter)
	if !ok {
		return providers.Ending{}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, endReportTimeout, fault.AgentUnavailable(errors.New("the substrate does not say how it ended")))
	defer cancel()
	for late := time.Now().Add(patience); ; {
		e, err := h.Ending(ctx, f.key.Name, f.expected)
		if !e.Pending && !errors.Is(err, providers.ErrUnavailable) || !time.Now().Before(late) {
			return e
		}
		select {
		case <-ctx.Done():
			return e
		case <-time.After(endingPause):
		}
	}
}

// endOf is for a command whose incarnation is not there any more.
func (f *follower) endOf(message string, e providers.Ending) error {
	reason := sandboxv1.ExitReason_EXIT_REASON_LOST
	if e.Failure == providers.FailureOutOfMemory {
		reason = sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY
	}
	if e.Message != "" {
		message += ": " + e.Message
	}
	return f.end(reason, message)
}

// end makes up the command's end where the agent cannot say it any more.
func (f *follower) end(reason sandboxv1.ExitReason, message string) error {
	return f.sendExited(&sandboxv1.ExecuteResponse{}, &sandboxv1.Exited{Reason: reason, Position: f.position, Message: message})
}

// follow opens one stream to the agent and passes on what comes until it ends.
func (f *follower) follow(ctx context.Context) error {
	t, err := f.s.reach(ctx, f.key, f.expected)
	if err != nil {
		return err
	}
	defer t.Release()
	f.expected = t.Incarnation

	// The caller's end is passed on to the agent, which then starts its timer
	// for lost callers. This server's own end is not: the pipe breaks then.
	up, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() {
		if !f.s.isStopping() {
			cancel(context.Cause(ctx))
		}
	})
	defer stop()

	begin := f.reattach
	if !f.started {
		begin = f.begin
	}
	stream, err := begin(up, t)
	if err == nil {
		err = f.relay(stream, t, func() { cancel(nil) })
	}
	err = agentconn.Error(up, err)
	if fault.IsMisbehaved(err) {
		t.Cut()
	}
	return err
}

// sendExited sends the end of the command in m, and notes it for the audit.
func (f *follower) sendExited(m *sandboxv1.ExecuteResponse, e *sandboxv1.Exited) error {
	m.Event = &sandboxv1.ExecuteResponse_Exited{Exited: e}
	f.call.exited.Store(e)
	f.s.metrics.commandEnded(e)
	if e.GetReason() == sandboxv1.ExitReason_EXIT_REASON_LOST {
		f.s.log.Warn("command lost", "tenant", f.key.Tenant, "sandbox_id", f.key.ID, "exec_id", f.execID, "message", auditText(e.GetMessage(), maxAuditText))
	}
	return f.send(m)
}

func (f *follower) send(m any) error {
	f.at.Store(f.position)
	f.sending.Store(time.Now().UnixNano())
	err := f.out.SendMsg(m)
	f.sending.Store(0)
	if err != nil {
		return &agentconn.CallerError{Err: err}
	}
	return nil
}
