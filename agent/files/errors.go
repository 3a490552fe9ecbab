package files

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sandgate/sandgate/agent/fault"
	"github.com/sandgate/sandgate/agent/files/paths"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Short names for the reasons of file calls.
const (
	requestInvalid  = sandboxv1.ErrorReason_ERROR_REASON_REQUEST_INVALID
	pathInvalid     = sandboxv1.ErrorReason_ERROR_REASON_PATH_INVALID
	patternInvalid  = sandboxv1.ErrorReason_ERROR_REASON_PATTERN_INVALID
	outOfOrder      = sandboxv1.ErrorReason_ERROR_REASON_UPLOAD_OUT_OF_ORDER
	messageTooLarge = sandboxv1.ErrorReason_ERROR_REASON_MESSAGE_TOO_LARGE
	policyDenied    = sandboxv1.ErrorReason_ERROR_REASON_POLICY_DENIED
	tokenInvalid    = sandboxv1.ErrorReason_ERROR_REASON_PAGE_TOKEN_INVALID
	exhausted       = sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_RESOURCES_EXHAUSTED
	notFound        = sandboxv1.ErrorReason_ERROR_REASON_FILE_NOT_FOUND
	permission      = sandboxv1.ErrorReason_ERROR_REASON_FILE_PERMISSION_DENIED
	isDirectory     = sandboxv1.ErrorReason_ERROR_REASON_FILE_IS_DIRECTORY
	notDirectory    = sandboxv1.ErrorReason_ERROR_REASON_FILE_NOT_DIRECTORY
	notRegular      = sandboxv1.ErrorReason_ERROR_REASON_FILE_NOT_REGULAR
	alreadyExists   = sandboxv1.ErrorReason_ERROR_REASON_FILE_ALREADY_EXISTS
	notEmpty        = sandboxv1.ErrorReason_ERROR_REASON_DIRECTORY_NOT_EMPTY
	tooLarge        = sandboxv1.ErrorReason_ERROR_REASON_FILE_TOO_LARGE
	diskFull        = sandboxv1.ErrorReason_ERROR_REASON_DISK_FULL
	notText         = sandboxv1.ErrorReason_ERROR_REASON_FILE_NOT_TEXT
	checksum        = sandboxv1.ErrorReason_ERROR_REASON_FILE_CHECKSUM_MISMATCH
	textNotFound    = sandboxv1.ErrorReason_ERROR_REASON_EDIT_TEXT_NOT_FOUND
	notUnique       = sandboxv1.ErrorReason_ERROR_REASON_EDIT_NOT_UNIQUE
	uploadNotFound  = sandboxv1.ErrorReason_ERROR_REASON_UPLOAD_NOT_FOUND
	offsetMismatch  = sandboxv1.ErrorReason_ERROR_REASON_UPLOAD_OFFSET_MISMATCH
	uploadBusy      = sandboxv1.ErrorReason_ERROR_REASON_UPLOAD_BUSY
	fileIO          = sandboxv1.ErrorReason_ERROR_REASON_FILE_IO
	crossDevice     = sandboxv1.ErrorReason_ERROR_REASON_FILE_CROSS_DEVICE
	readOnly        = sandboxv1.ErrorReason_ERROR_REASON_FILE_READ_ONLY
	callCancelled   = sandboxv1.ErrorReason_ERROR_REASON_CALL_CANCELLED
	callDeadline    = sandboxv1.ErrorReason_ERROR_REASON_CALL_DEADLINE_EXCEEDED
	internal        = sandboxv1.ErrorReason_ERROR_REASON_INTERNAL
)

// code returns the canonical code of a reason, as stated in sandbox_errors.proto.
func code(reason sandboxv1.ErrorReason) codes.Code {
	switch reason {
	case requestInvalid, pathInvalid, patternInvalid, outOfOrder, tokenInvalid:
		return codes.InvalidArgument
	case policyDenied, permission:
		return codes.PermissionDenied
	case notFound, textNotFound, uploadNotFound:
		return codes.NotFound
	case alreadyExists:
		return codes.AlreadyExists
	case tooLarge, diskFull, exhausted, messageTooLarge:
		return codes.ResourceExhausted
	case checksum:
		return codes.DataLoss
	case offsetMismatch:
		return codes.OutOfRange
	case uploadBusy:
		return codes.Aborted
	case isDirectory, notDirectory, notRegular, notEmpty, notText, notUnique, crossDevice, readOnly:
		return codes.FailedPrecondition
	case callCancelled:
		return codes.Canceled
	case callDeadline:
		return codes.DeadlineExceeded
	default:
		return codes.Internal
	}
}

// errnos maps error numbers to reasons and texts. A file in place of a directory within
// a path makes the path invalid.
var errnos = []struct {
	err    unix.Errno
	reason sandboxv1.ErrorReason
	text   string
}{
	{unix.ENOENT, notFound, "no such file or directory"},
	{unix.EACCES, permission, "permission denied"},
	{unix.EPERM, permission, "operation not permitted"},
	{unix.EBUSY, permission, "in use, such as a mount point"},
	{unix.EISDIR, isDirectory, "is a directory"},
	{unix.ENOTDIR, pathInvalid, "a part of the path is not a directory"},
	{unix.ELOOP, pathInvalid, "too many symbolic links, or one that may not be followed"},
	{unix.ENAMETOOLONG, pathInvalid, "the path or a name in it is too long"},
	{unix.EINVAL, pathInvalid, "not possible with this path"},
	{unix.EILSEQ, pathInvalid, "the file system cannot hold this name"},
	{unix.ENXIO, notRegular, "not a regular file"},
	{unix.ENODEV, notRegular, "not a regular file"},
	{unix.EEXIST, alreadyExists, "already exists"},
	{unix.ENOTEMPTY, notEmpty, "the directory is not empty"},
	{unix.EFBIG, tooLarge, "larger than the file system or a limit allows"},
	{unix.ENOSPC, diskFull, "no space left"},
	{unix.EDQUOT, diskFull, "the disk quota is used up"},
	{unix.EXDEV, crossDevice, "source and destination are on different file systems"},
	{unix.EROFS, readOnly, "the file system is read-only"},
	{unix.EMFILE, exhausted, "too many open files"},
	{unix.ENFILE, exhausted, "too many open files"},
	{unix.ENOMEM, exhausted, "out of memory"},
}

// pathFault returns an error about the file at path.
func pathFault(reason sandboxv1.ErrorReason, path, text string) *fault.Error {
	f := fault.New(code(reason), reason, fmt.Sprintf("%q: %s", path, text), map[string]string{"path": path})
	switch reason {
	case pathInvalid:
		return f.Field("path")
	case exhausted:
		return f.Retry(time.Second)
	}
	return f
}

func tooLargeFault(path string, limit int64) *fault.Error {
	return fault.New(codes.ResourceExhausted, tooLarge,
		fmt.Sprintf("%q: larger than the limit of %d bytes", path, limit),
		map[string]string{"path": path, "limit_bytes": strconv.FormatInt(limit, 10)})
}

func requestFault(field, text string) *fault.Error {
	return fault.New(codes.InvalidArgument, requestInvalid, field+": "+text, nil).Field(field)
}

func policyFault(err error) error {
	if errors.Is(err, paths.ErrInvalid) {
		return requestFault("access", err.Error()).Because(err)
	}
	return fail("root_dir", err)
}

// fail converts an error of an operation on path to the error of the call. It returns
// nil for nil.
func fail(path string, err error) error {
	if err == nil {
		return nil
	}
	return asFault(path, err)
}

func asFault(path string, err error) *fault.Error {
	var known *fault.Error
	var denied *paths.DeniedError
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &denied):
		return fault.New(codes.PermissionDenied, policyDenied, fmt.Sprintf("%q: %s", path, denied),
			map[string]string{"policy": denied.Policy}).Because(err)
	case errors.Is(err, paths.ErrInvalid), errors.Is(err, paths.ErrOutside):
		return pathFault(pathInvalid, path, err.Error()).Because(err)
	case errors.Is(err, context.Canceled), status.Code(err) == codes.Canceled:
		return fault.New(codes.Canceled, callCancelled, "the call was cancelled", nil).Because(err)
	case errors.Is(err, context.DeadlineExceeded), status.Code(err) == codes.DeadlineExceeded:
		return fault.New(codes.DeadlineExceeded, callDeadline, "the call's deadline ended", nil).Because(err)
	}
	for _, e := range errnos {
		if errors.Is(err, e.err) {
			return pathFault(e.reason, path, e.text).Because(err)
		}
	}
	var number unix.Errno
	if errors.As(err, &number) {
		return pathFault(fileIO, path, number.Error()).Because(err)
	}
	return fault.New(codes.Internal, internal, "internal error", nil).Because(err)
}

// fileError is asFault for one of several files. It returns nil for nil.
func fileError(path string, err error) *sandboxv1.FileError {
	if err == nil {
		return nil
	}
	f := asFault(path, err)
	return &sandboxv1.FileError{Reason: f.Reason(), Message: f.Message()}
}

func uploadFault(reason sandboxv1.ErrorReason, id, text string, more map[string]string) *fault.Error {
	metadata := map[string]string{"upload_id": id}
	for k, v := range more {
		metadata[k] = v
	}
	return fault.New(code(reason), reason, fmt.Sprintf("upload %q: %s", id, text), metadata)
}
