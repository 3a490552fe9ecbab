package process

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/fault"
	"github.com/sandgate/sandgate/agent/spawn"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

func TestStartErrors(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want sandboxv1.ErrorReason
	}{
		"held up":         {fmt.Errorf("%w: %w", spawn.ErrExec, spawn.ErrTimeout), sandboxv1.ErrorReason_ERROR_REASON_COMMAND_NOT_EXECUTABLE},
		"ended by others": {fmt.Errorf("%w: %w", spawn.ErrSetup, spawn.ErrSupervisorLost), sandboxv1.ErrorReason_ERROR_REASON_COMMAND_NOT_EXECUTABLE},
		"no program":      {fmt.Errorf("%w: %w", spawn.ErrExec, fs.ErrNotExist), sandboxv1.ErrorReason_ERROR_REASON_COMMAND_NOT_FOUND},
		"no directory":    {fmt.Errorf("%w: %w", spawn.ErrDir, fs.ErrNotExist), sandboxv1.ErrorReason_ERROR_REASON_WORKING_DIRECTORY_INVALID},
		"no process":      {fmt.Errorf("%w: %w", spawn.ErrSetup, unix.EAGAIN), sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_RESOURCES_EXHAUSTED},
		"a failure":       {fmt.Errorf("%w: %w", spawn.ErrSetup, unix.EINVAL), sandboxv1.ErrorReason_ERROR_REASON_INTERNAL},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := errors.AsType[*fault.Error](startError("/no/such/program", "/", c.err))
			if !ok || got.Reason() != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}
