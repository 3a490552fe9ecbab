package providers

import (
	"errors"
	"fmt"
)

// The sentinels that a provider's errors wrap. The server maps each to one
// gRPC code and reason. The caller sees the text around it, which must describe
// the mistake and hold no secrets.
var (
	// ErrNotFound: there is no such sandbox, template or pool.
	ErrNotFound = errors.New("not found")
	// ErrExists: the name is taken by a sandbox with another spec.
	ErrExists = errors.New("exists with another spec")
	// ErrNotActive: the sandbox's state does not allow the call. Providers return
	// it by NotActive, which adds the state.
	ErrNotActive = errors.New("not active")
	// ErrReplaced: the sandbox is another incarnation than the one meant.
	ErrReplaced = errors.New("replaced by another incarnation")
	// ErrInUse: the sandbox was used after Condition.IdleSince.
	ErrInUse = errors.New("in use again")
	// ErrInvalid: a field of the spec or an option is malformed or impossible
	// for this provider.
	ErrInvalid = errors.New("invalid")
	// ErrForbidden: the substrate or the template does not allow it.
	ErrForbidden = errors.New("forbidden")
	// ErrUnsupported: the provider cannot do this here.
	ErrUnsupported = errors.New("unsupported")
	// ErrExhausted: a limit or quota of the substrate is reached.
	ErrExhausted = errors.New("exhausted")
	// ErrStartFailed: the sandbox could not be started, and trying again with
	// the same spec will not help.
	ErrStartFailed = errors.New("could not be started")
	// ErrStartTimeout: the sandbox did not become ready in time.
	ErrStartTimeout = errors.New("not ready in time")
	// ErrAgentCannotStart: the agent cannot run in this image or pod.
	ErrAgentCannotStart = errors.New("agent cannot start")
	// ErrUnavailable: the substrate or the agent does not answer now.
	ErrUnavailable = errors.New("unavailable")
	// ErrTokenExpired: the page token is no longer accepted.
	ErrTokenExpired = errors.New("page token expired")
	// ErrTokenInvalid: the page token is malformed.
	ErrTokenInvalid = errors.New("page token invalid")
)

// NotActiveError is an ErrNotActive with the sandbox's state. A caller can resume
// a suspended sandbox, but not a failed one.
type NotActiveError struct {
	State State
	// Failure is why a sandbox in StateFailed ended, if the substrate reports it.
	Failure Failure
	text    error
}

// NotActive returns a NotActiveError with info's state and failure. The text is
// as with fmt.Errorf and must not repeat ErrNotActive.
func NotActive(info Info, format string, args ...any) error {
	return &NotActiveError{State: info.State, Failure: info.Failure, text: fmt.Errorf(format, args...)}
}

// Error returns the text, followed by that of ErrNotActive.
func (e *NotActiveError) Error() string { return e.text.Error() + ": " + ErrNotActive.Error() }

// Unwrap returns ErrNotActive and what the text wraps.
func (e *NotActiveError) Unwrap() []error { return []error{e.text, ErrNotActive} }
