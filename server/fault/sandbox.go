package fault

import (
	"errors"
	"fmt"
	"maps"
	"time"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/wire"
)

// The metadata of SANDBOX_NOT_ACTIVE: the state, and the cause of a failure if
// the substrate knows it.
const (
	MetaState          = "state"
	MetaFailure        = "failure"
	FailureOutOfMemory = "OUT_OF_MEMORY"
)

// metaSandboxID is the metadata of every error about one sandbox.
const metaSandboxID = "sandbox_id"

// NotFound is the error for a sandbox that does not exist.
func NotFound(id string) *Error {
	return New(sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_NOT_FOUND,
		"there is no sandbox %q; create it, or list the existing ones", id).
		With(metaSandboxID, id).WithCause(providers.ErrNotFound)
}

// Expired is the error for a sandbox whose lifetime ended at end.
func Expired(id string, end time.Time) *Error {
	return New(sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_EXPIRED,
		"the lifetime of sandbox %q ended at %s; create it again", id, end.UTC().Format(time.RFC3339)).
		With(metaSandboxID, id).With("expire_time", end.UTC().Format(time.RFC3339Nano)).WithCause(providers.ErrNotFound)
}

// SpecDiffers is the error for creating an id that exists with another spec.
func SpecDiffers(id string) *Error {
	return New(sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_SPEC_DIFFERS,
		"sandbox %q exists with another spec; use another id, or delete it first", id).With(metaSandboxID, id)
}

// Replaced is the error for a call that expects a former incarnation.
// incarnation is the present one.
func Replaced(id, incarnation string) *Error {
	return New(sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_REPLACED,
		"sandbox %q lost its disk and processes since the incarnation that the call expects", id).
		With(metaSandboxID, id).With("incarnation", incarnation)
}

// NotActive is the error for a call to a sandbox in which nothing can run.
func NotActive(info providers.Info) *Error {
	message := fmt.Sprintf("the sandbox is %s", info.State)
	switch {
	case info.State == providers.StateFailed:
		message = "the sandbox failed"
		if text := StateMessage(info); text != "" {
			message += ": " + text
		}
		message += "; delete it and create another"
	case info.Message != "":
		message += ": " + info.Message
	case info.State == providers.StateSuspended:
		message += "; resume it first"
	}
	return New(sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_NOT_ACTIVE, "%s", message).
		inState(info.State, info.Failure)
}

// inState adds the metadata of SANDBOX_NOT_ACTIVE.
func (e *Error) inState(state providers.State, failure providers.Failure) *Error {
	e = e.With(MetaState, wire.StateName(state))
	if failure == providers.FailureOutOfMemory {
		e = e.With(MetaFailure, FailureOutOfMemory)
	}
	return e
}

// StateMessage explains a sandbox's state to people. It is empty if the cause is
// unknown.
func StateMessage(info providers.Info) string {
	if info.Message == "" && info.Failure == providers.FailureOutOfMemory {
		return "it ran out of memory"
	}
	return info.Message
}

// Unsupported is the error for a feature that the server or the provider does
// not have.
func Unsupported(feature, format string, args ...any) *Error {
	return New(sandboxv1.ErrorReason_ERROR_REASON_FEATURE_UNSUPPORTED, format, args...).With("feature", feature)
}

// OutcomeUnknown is err for a call that was sent and not answered. The agent may
// have carried it out, so the error advises no retry.
func OutcomeUnknown(err error) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	unknown := *e
	unknown.Message += "; whether the call was carried out is unknown: check before you send it again"
	unknown.Metadata = maps.Clone(e.Metadata)
	unknown.final = true
	return unknown.With("outcome", "unknown")
}
