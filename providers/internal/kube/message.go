package kube

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sandgate/sandgate/providers"
)

// messageError is an error with a public message of its own. The texts of the
// sentinels that it wraps are not part of it: callers see those as a reason.
type messageError struct {
	message string
	causes  []error
}

func (e *messageError) Error() string   { return e.message }
func (e *messageError) Unwrap() []error { return e.causes }

// withMessage returns an error with a message that wraps each cause.
func withMessage(message string, causes ...error) error { return &messageError{message, causes} }

// Explain adds the cluster's warnings to the error of a pod that did not start,
// without those that the error contains already.
func Explain(err error, warnings []Warning) error {
	text := err.Error()
	for _, s := range startSentinels {
		if errors.Is(err, s) {
			text = strings.TrimSuffix(text, ": "+s.Error())
		}
	}
	var added []string
	for _, w := range warnings {
		if !repeats(text, w.Message) {
			added = append(added, w.Reason+": "+w.Message)
		}
	}
	if len(added) > 0 {
		text = fmt.Sprintf("%s; the cluster reports: %s", text, strings.Join(added, "; "))
	}
	return withMessage(text, err)
}

var startSentinels = []error{
	providers.ErrStartFailed, providers.ErrStartTimeout, providers.ErrAgentCannotStart, providers.ErrExhausted, providers.ErrUnavailable,
}

// repeats reports whether a text contains the message of a warning or the part
// after its first colon, or whether that part only names a container's state.
func repeats(text, message string) bool {
	_, rest, _ := strings.Cut(message, ": ")
	if slices.Contains(imageTroubles, rest) || slices.Contains(containerTroubles, rest) {
		return true
	}
	for _, part := range []string{message, rest} {
		if part = strings.TrimSuffix(part, cut); part != "" && strings.Contains(text, part) {
			return true
		}
	}
	return false
}
