package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// TestShowProgress: only what a creation waits for is shown, without control
// characters, and the line is cleared at the end.
func TestShowProgress(t *testing.T) {
	creating, active := sandboxv1.SandboxState_SANDBOX_STATE_CREATING, sandboxv1.SandboxState_SANDBOX_STATE_ACTIVE
	answers := []*sandgate.Info{
		nil, {State: creating}, {State: creating, StateMessage: "pulling app: 1 of 9 MiB"}, {State: creating, StateMessage: "pulling\x1b[2J"}, {State: active, StateMessage: "hidden"},
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	var out strings.Builder
	showProgress(ctx, &out, time.Millisecond, func(context.Context) (*sandgate.Info, error) {
		next := answers[0]
		if answers = answers[1:]; len(answers) == 0 {
			answers = []*sandgate.Info{nil}
			cancel(nil)
		}
		if next == nil {
			return nil, errors.New("not there yet")
		}
		return next, nil
	})
	shown := strings.Split(out.String(), "\r\x1b[K")
	if len(shown) < 4 || shown[1] != "pulling app: 1 of 9 MiB" || strings.Contains(shown[2], "\x1b") || shown[len(shown)-1] != "" || strings.Contains(out.String(), "hidden") {
		t.Errorf("%q", shown)
	}
}
