package sandgate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// class is a kind of error that has the same name in every client.
type class struct{ name string }

// Error returns the name that all three clients share, such as
// "SandboxNotFoundError".
func (c *class) Error() string { return c.name }

// The kinds of error, for errors.Is. ErrX is XError in the Python and TypeScript
// clients.
var (
	// ErrAuthentication: no credentials, or none that the server accepts.
	ErrAuthentication error = &class{"AuthenticationError"}
	// ErrPermissionDenied: a policy or the template forbids it.
	ErrPermissionDenied error = &class{"PermissionDeniedError"}
	// ErrInvalidRequest: a field is missing or malformed; see Error.Violations.
	ErrInvalidRequest error = &class{"InvalidRequestError"}
	// ErrSandboxNotFound: there is no such sandbox, or its lifetime ended.
	ErrSandboxNotFound error = &class{"SandboxNotFoundError"}
	// ErrSandboxExists: the id exists with another spec.
	ErrSandboxExists error = &class{"SandboxExistsError"}
	// ErrSandboxReplaced: the sandbox has lost the disk and processes of the expected
	// incarnation.
	ErrSandboxReplaced error = &class{"SandboxReplacedError"}
	// ErrSandboxNotActive: the sandbox's state does not allow the call.
	ErrSandboxNotActive error = &class{"SandboxNotActiveError"}
	// ErrSandboxStart: the sandbox could not be started.
	ErrSandboxStart error = &class{"SandboxStartError"}
	// ErrTemplateNotFound: there is no such template.
	ErrTemplateNotFound error = &class{"TemplateNotFoundError"}
	// ErrExecNotFound: there is no such command, or it is no longer retained.
	ErrExecNotFound error = &class{"ExecNotFoundError"}
	// ErrExecState: the command's state does not allow the call.
	ErrExecState error = &class{"ExecStateError"}
	// ErrCommandStart: the command could not be started.
	ErrCommandStart error = &class{"CommandStartError"}
	// ErrFile: a file operation failed; see Error.Reason.
	ErrFile error = &class{"FileError"}
	// ErrPortClosed: no program in the sandbox accepts connections on the port.
	ErrPortClosed error = &class{"PortClosedError"}
	// ErrUnsupported: the server or this sandbox does not support the call.
	ErrUnsupported error = &class{"UnsupportedError"}
	// ErrQuotaExceeded: a quota or limit is used up.
	ErrQuotaExceeded error = &class{"QuotaExceededError"}
	// ErrUnavailable: the server, substrate or agent is temporarily unreachable. The client
	// retried the call if that is safe.
	ErrUnavailable error = &class{"UnavailableError"}
	// ErrConnectionLost: a stream broke after it had begun, and could not be resumed within
	// the retry window. The command may still run: [Sandbox.Attach] to "exec_id" at
	// "position" of Error.Metadata.
	ErrConnectionLost error = &class{"ConnectionLostError"}
	// ErrCallCancelled: the caller cancelled, or closed the client. errors.Is(err,
	// context.Canceled) holds too.
	ErrCallCancelled error = &class{"CallCancelledError"}
	// ErrDeadlineExceeded: the call's deadline ended. errors.Is(err,
	// context.DeadlineExceeded) holds too.
	ErrDeadlineExceeded error = &class{"DeadlineExceededError"}
	// ErrBuild: [BuildImage] could not run the program, or the build failed; see "exit_code"
	// and "output" of Error.Metadata.
	ErrBuild error = &class{"BuildError"}
	// ErrInternal: a fault of Sandgate; find it in the logs by Error.RequestID.
	ErrInternal error = &class{"InternalError"}
)

// Reason is one exact reason of an error: the name of a value of ErrorReason
// without its prefix, such as "FILE_NOT_FOUND", for errors.Is.
type Reason string

// Error returns the reason's name.
func (r Reason) Error() string { return string(r) }

// Reasons that callers often compare with. Write others as Reason("…").
const (
	ErrFileNotFound         Reason = "FILE_NOT_FOUND"
	ErrFilePermissionDenied Reason = "FILE_PERMISSION_DENIED"
	ErrFileIsDirectory      Reason = "FILE_IS_DIRECTORY"
	ErrFileNotDirectory     Reason = "FILE_NOT_DIRECTORY"
	ErrFileAlreadyExists    Reason = "FILE_ALREADY_EXISTS"
	ErrPathInvalid          Reason = "PATH_INVALID"
	ErrCommandNotFound      Reason = "COMMAND_NOT_FOUND"
)

// Violation is one invalid field of a request.
type Violation struct {
	Field       string
	Description string
}

// Error is every error of this package.
type Error struct {
	// Code is the canonical gRPC code.
	Code codes.Code
	// Reason is the exact reason; empty if the server did not answer or is not Sandgate.
	Reason Reason
	// Message is one line of text.
	Message string
	// Metadata holds details, such as "sandbox_id".
	Metadata map[string]string
	// Violations are the invalid fields of a malformed request.
	Violations []Violation
	// RequestID identifies the call in the server's logs and audit records.
	RequestID string
	// RetryAfter is how long to wait before a retry. 0: unknown.
	RetryAfter time.Duration

	class error // nil: derived from Reason and Code
	// tokenChanged is true if the server rejected a token that has changed since: another
	// attempt may succeed.
	tokenChanged bool
	cause        error
}

// Error returns the message and the reason.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Message)
	for _, v := range e.Violations {
		if !strings.Contains(e.Message, v.Description) {
			fmt.Fprintf(&b, "; %s: %s", v.Field, v.Description)
		}
	}
	if e.Reason != "" {
		fmt.Fprintf(&b, " (%s)", e.Reason)
	}
	return b.String()
}

// Name returns the name that this kind of error has in every client, such as
// "SandboxNotFoundError"; "SandgateError" if it has no special kind.
func (e *Error) Name() string {
	if kind := e.kind(); kind != nil {
		return kind.Error()
	}
	return "SandgateError"
}

// kind returns the kind of the error, for errors.Is; nil if it has none.
func (e *Error) kind() error {
	if e.class != nil {
		return e.class
	}
	return classOf(e.Reason, e.Code)
}

// Is makes errors.Is work with the Err… values, with a Reason, and with
// context.Canceled and context.DeadlineExceeded.
func (e *Error) Is(target error) bool {
	switch {
	case target == e.kind() && target != nil:
		return true
	case target == context.Canceled:
		return e.Code == codes.Canceled
	case target == context.DeadlineExceeded:
		return e.Code == codes.DeadlineExceeded
	}
	reason, ok := target.(Reason)
	return ok && reason != "" && reason == e.Reason
}

// Unwrap returns the local cause of the error, if any.
func (e *Error) Unwrap() error { return e.cause }

// GRPCStatus makes status.FromError and status.Code work.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.Code, e.Message) }

// fromStatus converts an error of gRPC to an *Error. It returns nil, io.EOF and an
// *Error unchanged.
func fromStatus(err error, requestID string) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	if e := (*Error)(nil); errors.As(err, &e) {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		err = status.FromContextError(err).Err()
	}
	st, _ := status.FromError(err)
	e := &Error{Code: st.Code(), Message: st.Message(), RequestID: requestID}
	for _, detail := range st.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == "sandgate" {
				e.Reason, e.Metadata = Reason(d.GetReason()), d.GetMetadata()
			}
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				e.Violations = append(e.Violations, Violation{Field: v.GetField(), Description: v.GetDescription()})
			}
		case *errdetails.RetryInfo:
			e.RetryAfter = d.GetRetryDelay().AsDuration()
		}
	}
	return e
}

// fromFile converts the failure of one of several files to an *Error.
func fromFile(path string, fe *sandboxv1.FileError) error {
	if fe == nil {
		return nil
	}
	name := Reason(strings.TrimPrefix(fe.GetReason().String(), "ERROR_REASON_"))
	return &Error{
		Code:     codeOf(name),
		Reason:   name,
		Message:  fe.GetMessage(),
		Metadata: map[string]string{"path": path},
	}
}

// local returns an *Error for a failure on this side.
func local(kind error, code codes.Code, cause error, format string, args ...any) error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), class: kind, cause: cause}
}

// closedError returns the *Error for a call of a client that was closed.
func closedError() error {
	return &Error{Code: codes.Canceled, Reason: "CALL_CANCELLED", Message: "the client is closed"}
}

// cancelled returns the *Error for a context that ended.
func cancelled(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return local(ErrDeadlineExceeded, codes.DeadlineExceeded, cause, "the call's deadline ended")
	}
	return local(ErrCallCancelled, codes.Canceled, cause, "the caller cancelled: %v", cause)
}
