package fault

import (
	"errors"
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Bounds of an agent's error, in entries.
const (
	maxAgentMetadata   = 16
	maxAgentViolations = 16
)

// AgentUnavailable is the error for an agent that could not be reached in time.
func AgentUnavailable(cause error) *Error {
	return New(sandboxv1.ErrorReason_ERROR_REASON_AGENT_UNAVAILABLE,
		"the sandbox's agent cannot be reached now").WithCause(cause)
}

// Misbehaved is the error for an agent that broke the protocol. The format
// describes the breach for the log.
func Misbehaved(format string, args ...any) *Error {
	return New(sandboxv1.ErrorReason_ERROR_REASON_AGENT_MISBEHAVED,
		"the sandbox's agent broke the protocol; do not trust this sandbox; create another").
		WithCause(fmt.Errorf(format, args...))
}

// IsMisbehaved reports whether err is from Misbehaved.
func IsMisbehaved(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Reason == sandboxv1.ErrorReason_ERROR_REASON_AGENT_MISBEHAVED
}

// FromAgent returns the error in an agent's status, or nil if it has no
// ErrorInfo of Sandgate's. A reason that no agent may give is a Misbehaved. The
// table decides the code, whatever the agent's code is.
func FromAgent(st *status.Status) *Error {
	var info *errdetails.ErrorInfo
	var violations []*errdetails.BadRequest_FieldViolation
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if info == nil && d.GetDomain() == Domain {
				info = d
			}
		case *errdetails.BadRequest:
			violations = append(violations, d.GetFieldViolations()...)
		}
	}
	if info == nil {
		return nil
	}
	n, known := sandboxv1.ErrorReason_value["ERROR_REASON_"+info.GetReason()]
	reason := sandboxv1.ErrorReason(n)
	if !known || !reasons[reason].agent {
		return Misbehaved("the reason %q", Bounded(info.GetReason()))
	}
	if reason == sandboxv1.ErrorReason_ERROR_REASON_INTERNAL {
		return New(reason, "internal error in the sandbox's agent").WithCause(errors.New(Bounded(st.Message())))
	}
	e := New(reason, "%s", Bounded(st.Message()))
	for k, v := range info.GetMetadata() {
		if len(e.Metadata) < maxAgentMetadata {
			e = e.With(Bounded(k), Bounded(v))
		}
	}
	for _, v := range violations {
		if len(e.Violations) < maxAgentViolations {
			e.Violations = append(e.Violations, &errdetails.BadRequest_FieldViolation{
				Field: Bounded(v.GetField()), Description: Bounded(v.GetDescription()),
			})
		}
	}
	return e
}
