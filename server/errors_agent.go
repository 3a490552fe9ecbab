package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// errPipe is wrapped by errors that mean that the way to the agent broke; what
// happened to the call is then unknown.
var errPipe = errors.New("the connection to the sandbox's agent broke")

// Bounds for what an agent's error may carry to the caller.
const (
	maxAgentText       = 512
	maxAgentMeta       = 16
	maxAgentViolations = 16
)

// agentError turns what a call to an agent returned into a fault, errPipe, or
// the end of ctx. An agent's status is believed only when it carries an
// ErrorInfo of ours with a reason that an agent may give; its code is then the
// table's.
func agentError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	var gone *sendError
	if errors.As(err, &gone) {
		return gone
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var own *fault
	if errors.As(err, &own) {
		return own
	}
	if errors.Is(err, errPipe) {
		return err
	}
	st, ok := status.FromError(err)
	if !ok {
		return fmt.Errorf("%w: %w", errPipe, err)
	}
	if f := agentFault(st); f != nil {
		return f
	}
	switch st.Code() {
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded:
		// gRPC's own words for a connection that went away.
		return fmt.Errorf("%w: %s", errPipe, st.Message())
	case codes.Unimplemented:
		return faultf(sandboxv1.ErrorReason_ERROR_REASON_FEATURE_UNSUPPORTED,
			"this sandbox's agent is too old for the call").with("feature", "agent").because(err)
	default:
		return misbehaved("an error without a reason: %s: %s", st.Code(), bounded(st.Message()))
	}
}

func agentFault(st *status.Status) *fault {
	var f *fault
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == errorDomain {
			n, known := sandboxv1.ErrorReason_value["ERROR_REASON_"+info.GetReason()]
			reason := sandboxv1.ErrorReason(n)
			if !known || !reasons[reason].agent {
				return misbehaved("the reason %q", bounded(info.GetReason()))
			}
			f = &fault{reason: reason, message: bounded(st.Message())}
			for k, v := range info.GetMetadata() {
				if len(f.meta) < maxAgentMeta {
					f = f.with(bounded(k), bounded(v))
				}
			}
			break
		}
	}
	if f == nil {
		return nil
	}
	if f.reason == sandboxv1.ErrorReason_ERROR_REASON_INTERNAL {
		return faultf(f.reason, "internal error in the sandbox's agent").because(errors.New(f.message))
	}
	for _, d := range st.Details() {
		bad, ok := d.(*errdetails.BadRequest)
		if !ok {
			continue
		}
		for _, v := range bad.GetFieldViolations() {
			if len(f.violations) < maxAgentViolations {
				f.violations = append(f.violations, &errdetails.BadRequest_FieldViolation{
					Field: bounded(v.GetField()), Description: bounded(v.GetDescription()),
				})
			}
		}
	}
	return f
}

// misbehaved is the error for an agent that broke the protocol.
func misbehaved(format string, args ...any) *fault {
	return faultf(sandboxv1.ErrorReason_ERROR_REASON_AGENT_MISBEHAVED,
		"the sandbox's agent broke the protocol; do not trust this sandbox and make a new one").
		because(fmt.Errorf(format, args...))
}

func isMisbehaved(err error) bool {
	var f *fault
	return errors.As(err, &f) && f.reason == sandboxv1.ErrorReason_ERROR_REASON_AGENT_MISBEHAVED
}

// agentUnavailable is the error for an agent that could not be reached in time.
func agentUnavailable(err error) *fault {
	return faultf(sandboxv1.ErrorReason_ERROR_REASON_AGENT_UNAVAILABLE,
		"the sandbox's agent cannot be reached now").because(err)
}

func bounded(s string) string { return clip(s, maxAgentText) }

// clip returns at most n bytes of s, as valid UTF-8.
func clip(s string, n int) string {
	if len(s) > n {
		s = s[:n]
		for !utf8.ValidString(s) && len(s) > n-utf8.UTFMax {
			s = s[:len(s)-1]
		}
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
