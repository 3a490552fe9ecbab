package providers

import "errors"

// The sentinels that a provider's errors wrap. The server maps each to one
// gRPC code and reason; the text around it is shown to the caller, so it must
// say what was wrong and hold no secrets.
var (
	// ErrNotFound: there is no such sandbox, template or pool.
	ErrNotFound = errors.New("not found")
	// ErrExists: the name is taken by a sandbox with another spec.
	ErrExists = errors.New("exists with another spec")
	// ErrNotActive: the sandbox is not in a state in which this can be done.
	ErrNotActive = errors.New("not active")
	// ErrReplaced: the sandbox is another incarnation than the one meant.
	ErrReplaced = errors.New("replaced by another incarnation")
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
