package providers_test

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/sandgate/sandgate/providers"
)

func TestNotActive(t *testing.T) {
	info := providers.Info{State: providers.StateFailed, Failure: providers.FailureOutOfMemory, Message: "it grew"}
	err := fmt.Errorf("create: %w", providers.NotActive(info, "it is %s, %w", info.Status(), fs.ErrClosed))
	if want := "create: it is failed: it grew, file already closed: not active"; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
	var inactive *providers.NotActiveError
	if !errors.As(err, &inactive) || inactive.State != info.State || inactive.Failure != info.Failure {
		t.Errorf("%+v", inactive)
	}
	if !errors.Is(err, providers.ErrNotActive) || !errors.Is(err, fs.ErrClosed) || errors.Is(err, providers.ErrInvalid) {
		t.Errorf("%v wraps something else", err)
	}
}

func TestStatusWithoutAMessage(t *testing.T) {
	if got := (providers.Info{State: providers.StateSuspended}).Status(); got != "suspended" {
		t.Errorf("%q", got)
	}
}
