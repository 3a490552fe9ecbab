package kube

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sandgate/sandgate/providers"
)

// told is an error in words of its own. Those of the sentinels that it wraps are
// not among them: callers are shown these as a reason.
type told struct {
	text string
	why  []error
}

func (t *told) Error() string   { return t.text }
func (t *told) Unwrap() []error { return t.why }

// because makes an error that says text, and is each of why.
func because(text string, why ...error) error { return &told{text, why} }

// Explain adds what the cluster said to the error of a pod that did not start,
// but for what the error says already.
func Explain(err error, warnings []Warning) error {
	text := err.Error()
	for _, s := range startSentinels {
		if errors.Is(err, s) {
			text = strings.TrimSuffix(text, ": "+s.Error())
		}
	}
	var said []string
	for _, w := range warnings {
		if !repeats(text, w.Message) {
			said = append(said, w.Reason+": "+w.Message)
		}
	}
	if len(said) > 0 {
		text = fmt.Sprintf("%s; the cluster said: %s", text, strings.Join(said, "; "))
	}
	return because(text, err)
}

var startSentinels = []error{
	providers.ErrStartFailed, providers.ErrStartTimeout, providers.ErrAgentCannotStart, providers.ErrExhausted, providers.ErrUnavailable,
}

// repeats reports whether a text has the message of a warning in it, or what
// follows the message's first words, or whether those say no more than that a
// container is in trouble.
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
