// Package fault has the errors of the agent's calls: a canonical code,
// google.rpc.ErrorInfo with a reason of sandbox.v1.ErrorReason and, depending on the
// reason, BadRequest or RetryInfo. It also converts panics to such errors.
package fault

import (
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Domain is the domain of every ErrorInfo.
const Domain = "sandgate"

const reasonPrefix = "ERROR_REASON_"

// Error is a failed call. grpc-go sends what GRPCStatus returns.
type Error struct {
	code     codes.Code
	reason   sandboxv1.ErrorReason
	msg      string
	metadata map[string]string
	field    string
	retry    time.Duration
	cause    error
}

// New returns an error. The comment of the reason in sandbox_errors.proto defines its code
// and metadata keys. The message is one line for people.
func New(code codes.Code, reason sandboxv1.ErrorReason, msg string, metadata map[string]string) *Error {
	return &Error{code: code, reason: reason, msg: text(msg), metadata: metadata}
}

// Field sets the invalid field of the request, which adds a BadRequest. It returns e.
func (e *Error) Field(name string) *Error {
	e.field = name
	return e
}

// Retry sets when a retry makes sense, which adds a RetryInfo. It returns e.
func (e *Error) Retry(after time.Duration) *Error {
	e.retry = after
	return e
}

// Because sets the cause for errors.Is, which is not sent. It returns e.
func (e *Error) Because(cause error) *Error {
	e.cause = cause
	return e
}

// Code returns the canonical code.
func (e *Error) Code() codes.Code { return e.code }

// Reason returns the reason.
func (e *Error) Reason() sandboxv1.ErrorReason { return e.reason }

// Message returns the line for people.
func (e *Error) Message() string { return e.msg }

// Error returns reason and message.
func (e *Error) Error() string { return name(e.reason) + ": " + e.msg }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.cause }

// GRPCStatus returns the status to send.
func (e *Error) GRPCStatus() *status.Status {
	info := &errdetails.ErrorInfo{Reason: name(e.reason), Domain: Domain}
	if len(e.metadata) > 0 {
		info.Metadata = make(map[string]string, len(e.metadata))
		for k, v := range e.metadata {
			info.Metadata[k] = text(v)
		}
	}
	details := []protoadapt.MessageV1{info}
	if e.field != "" {
		details = append(details, &errdetails.BadRequest{
			FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: e.field, Description: e.msg}},
		})
	}
	if e.retry > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.retry)})
	}
	plain := status.New(e.code, e.msg)
	full, err := plain.WithDetails(details...)
	if err != nil {
		return plain
	}
	return full
}

func name(reason sandboxv1.ErrorReason) string {
	return strings.TrimPrefix(reason.String(), reasonPrefix)
}

// maxText bounds one text of an error, in bytes. A status travels as metadata, which
// servers bound, and may name what a caller chose.
const maxText = 2 << 10

// text converts s to a protobuf string: file names may contain any bytes.
func text(s string) string {
	if len(s) > maxText {
		s = s[:maxText] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
