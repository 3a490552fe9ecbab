package process

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/sandgate/sandgate/agent/fault"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// ResizeTerminal sets the size of a command's terminal.
func (s *Service) ResizeTerminal(_ context.Context, r *sandboxv1.ResizeTerminalRequest) (*sandboxv1.ResizeTerminalResponse, error) {
	c, err := s.command(r.GetExecId())
	if err != nil {
		return nil, err
	}
	if err := checkSize(r.GetSize()); err != nil {
		return nil, err
	}
	if !c.terminal {
		return nil, fault.New(codes.FailedPrecondition, sandboxv1.ErrorReason_ERROR_REASON_NO_TERMINAL,
			"the command has no terminal", map[string]string{"exec_id": c.id})
	}
	raw, err := c.stdin.file.SyscallConn()
	if err == nil {
		var failed error
		err = raw.Control(func(fd uintptr) {
			failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(r.GetSize().GetRows()), Col: uint16(r.GetSize().GetColumns())})
		})
		err = errors.Join(err, failed)
	}
	if err != nil {
		return nil, fault.New(codes.FailedPrecondition, sandboxv1.ErrorReason_ERROR_REASON_EXEC_ENDED, "the process has ended", nil).Because(err)
	}
	return &sandboxv1.ResizeTerminalResponse{}, nil
}
