package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/sandgate/sandgate/agent/fault"
	"github.com/sandgate/sandgate/agent/spawn"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

func invalid(field, format string, args ...any) error {
	return fault.New(codes.InvalidArgument, sandboxv1.ErrorReason_ERROR_REASON_REQUEST_INVALID,
		field+": "+fmt.Sprintf(format, args...), nil).Field(field)
}

func execNotFound(id string) error {
	return fault.New(codes.NotFound, sandboxv1.ErrorReason_ERROR_REASON_EXEC_NOT_FOUND,
		fmt.Sprintf("there is no command %q, or its end is no longer kept", id), map[string]string{"exec_id": id})
}

// execForgotten rejects the start of a command that may already have run.
func execForgotten(id string) error {
	return fault.New(codes.NotFound, sandboxv1.ErrorReason_ERROR_REASON_EXEC_NOT_FOUND,
		fmt.Sprintf("command %q ran and ended; too many others ended since for its end to be kept", id), map[string]string{"exec_id": id})
}

func execReused(id string) error {
	return fault.New(codes.AlreadyExists, sandboxv1.ErrorReason_ERROR_REASON_EXEC_ID_REUSED,
		fmt.Sprintf("exec_id %q was used for another request; choose another id", id), map[string]string{"exec_id": id})
}

func commandNotFound(name string) error {
	return fault.New(codes.NotFound, sandboxv1.ErrorReason_ERROR_REASON_COMMAND_NOT_FOUND,
		fmt.Sprintf("there is no program %q in the sandbox", name), map[string]string{"command": name})
}

func notExecutable(name string, cause error) error {
	return fault.New(codes.FailedPrecondition, sandboxv1.ErrorReason_ERROR_REASON_COMMAND_NOT_EXECUTABLE,
		fmt.Sprintf("%q cannot be executed: %s", name, causeText(cause)), map[string]string{"command": name}).Because(cause)
}

func badDirectory(dir string, cause error) error {
	return fault.New(codes.FailedPrecondition, sandboxv1.ErrorReason_ERROR_REASON_WORKING_DIRECTORY_INVALID,
		fmt.Sprintf("cannot enter the working directory %q: %s", dir, causeText(cause)), map[string]string{"cwd": dir}).Because(cause)
}

func exhausted(cause error) error {
	return fault.New(codes.ResourceExhausted, sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_RESOURCES_EXHAUSTED,
		"the sandbox cannot start another process: "+causeText(cause)+"; end what still runs in it, or give it more", nil).Retry(time.Second).Because(cause)
}

func stopping() error {
	return fault.New(codes.FailedPrecondition, sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_NOT_ACTIVE,
		"the sandbox is being stopped", nil)
}

func positionInvalid(position, end int64) error {
	return fault.New(codes.OutOfRange, sandboxv1.ErrorReason_ERROR_REASON_POSITION_INVALID,
		fmt.Sprintf("position %d is beyond the output's end at %d", position, end),
		map[string]string{"position": strconv.FormatInt(position, 10), "end": strconv.FormatInt(end, 10)})
}

func readerTooSlow(position int64) error {
	return fault.New(codes.ResourceExhausted, sandboxv1.ErrorReason_ERROR_REASON_READER_TOO_SLOW,
		fmt.Sprintf("the reader took nothing for too long; attach again from position %d", position),
		map[string]string{"position": strconv.FormatInt(position, 10)})
}

// startError converts an error of spawn.
func startError(name, dir string, err error) error {
	switch {
	case errors.Is(err, spawn.ErrTimeout), errors.Is(err, spawn.ErrSupervisorLost):
		return notExecutable(name, errHeldUp)
	case errors.Is(err, spawn.ErrDir):
		return badDirectory(dir, err)
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return exhausted(err)
	case errors.Is(err, unix.E2BIG):
		return fault.New(codes.InvalidArgument, sandboxv1.ErrorReason_ERROR_REASON_REQUEST_INVALID,
			"argv: an argument, or all of them with the environment, are larger than the kernel takes", nil).Field("argv").Because(err)
	case errors.Is(err, spawn.ErrExec) && errors.Is(err, fs.ErrNotExist):
		if programExists(name, dir) {
			return notExecutable(name, errNoInterpreter)
		}
		return commandNotFound(name)
	case errors.Is(err, spawn.ErrExec) && isDirectory(name, dir):
		return notExecutable(name, unix.EISDIR)
	case errors.Is(err, spawn.ErrExec):
		return notExecutable(name, err)
	default:
		return fault.Internal(err)
	}
}

// errNoInterpreter is the cause if the kernel finds the program but not its
// interpreter.
var errNoInterpreter = errors.New("the interpreter or loader that it names does not exist in the sandbox")

// errHeldUp is the cause if the start did not end in time.
var errHeldUp = errors.New("its start took too long and was ended; the file system of the program or of the working directory does not answer, or another program of the sandbox stopped it")

// programExists reports whether a program exists although the kernel returned
// ENOENT. A name without a slash was found on the PATH before.
func programExists(name, dir string) bool {
	if !strings.Contains(name, "/") {
		return true
	}
	_, err := os.Stat(programPath(name, dir))
	return err == nil
}

func isDirectory(name, dir string) bool {
	info, err := os.Stat(programPath(name, dir))
	return strings.Contains(name, "/") && err == nil && info.IsDir()
}

func programPath(name, dir string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(dir, name)
}

func causeText(err error) string {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}
