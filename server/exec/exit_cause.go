package exec

import (
	"context"
	"errors"
	"time"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/wire"
)

// exitCause decides, after the stream of a command failed with err, whether the
// command has ended although no agent can report it any more. It returns the end,
// or the error that the relay retries or returns.
func (r *relay) exitCause(ctx context.Context, err error) (*sandboxv1.Exited, error) {
	if !r.started {
		return nil, err
	}
	var f *fault.Error
	if errors.As(err, &f) {
		switch f.Reason {
		case sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_REPLACED:
			end := r.incarnationEnd(ctx, endReportWait)
			return r.lostWith(end, "the sandbox lost its processes and was recreated"), nil
		case sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_NOT_FOUND, sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_EXPIRED:
			return r.exited(sandboxv1.ExitReason_EXIT_REASON_SANDBOX_STOPPED, f.Message), nil
		case sandboxv1.ErrorReason_ERROR_REASON_EXEC_NOT_FOUND:
			return r.exited(sandboxv1.ExitReason_EXIT_REASON_LOST, "the sandbox's agent no longer has the command"), nil
		case sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_NOT_ACTIVE:
			return r.inactiveCause(ctx, f)
		}
	}
	if errors.Is(err, providers.ErrNotActive) {
		// It ended between the look-up and the call. The next look-up returns why.
		return nil, fault.AgentUnavailable(err)
	}
	return nil, err
}

// inactiveCause is exitCause for a sandbox that is no longer active.
func (r *relay) inactiveCause(ctx context.Context, f *fault.Error) (*sandboxv1.Exited, error) {
	switch f.Metadata[fault.MetaState] {
	case wire.StateName(providers.StateSuspended), wire.StateName(providers.StateDeleting):
		return r.exited(sandboxv1.ExitReason_EXIT_REASON_SANDBOX_STOPPED, f.Message), nil
	case wire.StateName(providers.StateFailed):
		if f.Metadata[fault.MetaFailure] == fault.FailureOutOfMemory {
			return r.exited(sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY, f.Message), nil
		}
		return r.exited(sandboxv1.ExitReason_EXIT_REASON_LOST, f.Message), nil
	case wire.StateName(providers.StateCreating):
		// A substrate that makes the sandbox anew reports another incarnation when it
		// has. One that only does not see it as ready, because a node or its kubelet is
		// away, brings the same one back.
		if end := r.incarnationEnd(ctx, 0); end.Known {
			return r.lostWith(end, "the sandbox lost its processes"), nil
		}
		return nil, fault.AgentUnavailable(f)
	default:
		return nil, f
	}
}

const (
	// endReportWait is how long a substrate may take to notice the end of an
	// incarnation, and endReportPause the time between two requests.
	endReportWait  = 5 * time.Second
	endReportPause = 200 * time.Millisecond
	// endReportTimeout bounds the whole.
	endReportTimeout = 20 * time.Second
)

// incarnationEnd returns how the command's incarnation ended. It waits at most
// grace for a substrate that has not noticed yet.
func (r *relay) incarnationEnd(ctx context.Context, grace time.Duration) providers.Ending {
	h, ok := r.s.cfg.Provider.(providers.EndReporter)
	if !ok {
		return providers.Ending{}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, endReportTimeout, fault.AgentUnavailable(errors.New("the substrate does not report how the sandbox ended")))
	defer cancel()
	for late := time.Now().Add(grace); ; {
		end, err := h.Ending(ctx, r.key.Name, r.expected)
		if !end.Pending && !errors.Is(err, providers.ErrUnavailable) || !time.Now().Before(late) {
			return end
		}
		select {
		case <-ctx.Done():
			return end
		case <-time.After(endReportPause):
		}
	}
}

// lostWith is the end of a command that was lost with its incarnation.
func (r *relay) lostWith(end providers.Ending, message string) *sandboxv1.Exited {
	reason := sandboxv1.ExitReason_EXIT_REASON_LOST
	if end.Failure == providers.FailureOutOfMemory {
		reason = sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY
	}
	if end.Message != "" {
		message += ": " + end.Message
	}
	return r.exited(reason, message)
}

// exited is an end that the server reports in the agent's place.
func (r *relay) exited(reason sandboxv1.ExitReason, message string) *sandboxv1.Exited {
	return &sandboxv1.Exited{Reason: reason, Position: r.position, Message: message}
}
