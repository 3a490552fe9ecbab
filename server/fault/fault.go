// Package fault builds the errors that callers receive: a canonical code,
// google.rpc.ErrorInfo with a reason of sandbox.v1.ErrorReason, and BadRequest
// or RetryInfo where the reason has them. Only this package of the server
// builds statuses.
package fault

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
)

// Error is an error whose reason, message and metadata are public. Its cause is
// for the log only.
type Error struct {
	Reason   sandboxv1.ErrorReason
	Message  string
	Metadata map[string]string
	// Violations become a BadRequest.
	Violations []*errdetails.BadRequest_FieldViolation

	cause error
	// final suppresses RetryInfo. retry replaces the reason's delay.
	final bool
	retry time.Duration
}

// New returns an error with a public message.
func New(reason sandboxv1.ErrorReason, format string, args ...any) *Error {
	return &Error{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Error returns the message and the cause. Callers receive the message only.
func (e *Error) Error() string {
	if e.cause != nil {
		return e.Message + ": " + e.cause.Error()
	}
	return e.Message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.cause }

// With adds metadata and returns e.
func (e *Error) With(key, value string) *Error {
	if e.Metadata == nil {
		e.Metadata = make(map[string]string, 2)
	}
	e.Metadata[key] = value
	return e
}

// WithCause sets the cause, which only the log shows, and returns e.
func (e *Error) WithCause(err error) *Error {
	e.cause = err
	return e
}

// Final suppresses the reason's RetryInfo and returns e: no waiting helps.
func (e *Error) Final() *Error {
	e.final = true
	return e
}

// RetryAfter sets when the caller should try again, if d is not 0, and returns e.
// The reason must be one with RetryInfo.
func (e *Error) RetryAfter(d time.Duration) *Error {
	e.retry = d
	return e
}

// ErrShuttingDown ends calls while the server stops.
var ErrShuttingDown = New(sandboxv1.ErrorReason_ERROR_REASON_SERVER_SHUTTING_DOWN,
	"the server is shutting down; commands keep running, attach again at another replica or after the restart")

// From turns any error into an Error; nil stays nil. The cause of a cancelled
// context takes precedence, so that a shutdown is not reported as the caller's
// cancellation.
func From(ctx context.Context, err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	if reason, ok := contextReason(err); ok {
		if cause := context.Cause(ctx); errors.As(cause, &e) {
			return e
		}
		if reason == sandboxv1.ErrorReason_ERROR_REASON_CALL_DEADLINE_EXCEEDED {
			return New(reason, "the call's deadline ended").WithCause(err)
		}
		return New(reason, "the caller cancelled the call").WithCause(err)
	}
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			// The sentinel's own text repeats the reason.
			e = New(s.reason, "%s", strings.TrimSuffix(err.Error(), ": "+s.err.Error()))
			var inactive *providers.NotActiveError
			if errors.Is(s.err, providers.ErrNotActive) && errors.As(err, &inactive) {
				e = e.inState(inactive.State, inactive.Failure)
			}
			return e
		}
	}
	if st, ok := status.FromError(err); ok && errors.Is(ctx.Err(), context.Canceled) && st.Code() == codes.Canceled {
		if errors.As(context.Cause(ctx), &e) {
			return e
		}
		return New(sandboxv1.ErrorReason_ERROR_REASON_CALL_CANCELLED, "the caller cancelled the call").WithCause(err)
	}
	for _, s := range shortages {
		if errors.Is(err, s.err) {
			return New(s.reason, "%s", s.message).WithCause(err)
		}
	}
	return New(sandboxv1.ErrorReason_ERROR_REASON_INTERNAL, "internal error").WithCause(err)
}

// shortages are errors of this machine that last until an operator makes room. They name
// files, which callers do not see.
var shortages = []struct {
	err     error
	reason  sandboxv1.ErrorReason
	message string
}{
	{syscall.EMFILE, sandboxv1.ErrorReason_ERROR_REASON_PROVIDER_UNAVAILABLE, "this server has too many open files"},
	{syscall.ENFILE, sandboxv1.ErrorReason_ERROR_REASON_PROVIDER_UNAVAILABLE, "this server's machine has too many open files"},
	{syscall.ENOSPC, sandboxv1.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED, "this server's disk is full"},
	{syscall.EDQUOT, sandboxv1.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED, "this server's disk is full"},
}

func contextReason(err error) (sandboxv1.ErrorReason, bool) {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return sandboxv1.ErrorReason_ERROR_REASON_CALL_DEADLINE_EXCEEDED, true
	case errors.Is(err, context.Canceled):
		return sandboxv1.ErrorReason_ERROR_REASON_CALL_CANCELLED, true
	default:
		return 0, false
	}
}
