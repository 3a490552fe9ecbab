package sandgate

import "google.golang.org/grpc/codes"

// byReason maps reasons to kinds of error. It is the table of clients/errors.json,
// which all three clients are tested against.
var byReason = map[Reason]error{
	"AGENT_CANNOT_START":          ErrSandboxStart,
	"AGENT_MISBEHAVED":            ErrInternal,
	"AGENT_UNAVAILABLE":           ErrUnavailable,
	"AGENT_VERSION_UNSUPPORTED":   ErrUnsupported,
	"AUTHENTICATION_UNAVAILABLE":  ErrUnavailable,
	"CALL_CANCELLED":              ErrCallCancelled,
	"CALL_DEADLINE_EXCEEDED":      ErrDeadlineExceeded,
	"CALL_FORBIDDEN":              ErrPermissionDenied,
	"COMMAND_NOT_EXECUTABLE":      ErrCommandStart,
	"COMMAND_NOT_FOUND":           ErrCommandStart,
	"CONNECTION_RESET":            ErrConnectionLost,
	"CREDENTIALS_INVALID":         ErrAuthentication,
	"DIRECTORY_NOT_EMPTY":         ErrFile,
	"DISK_FULL":                   ErrFile,
	"EDIT_NOT_UNIQUE":             ErrFile,
	"EDIT_TEXT_NOT_FOUND":         ErrFile,
	"EXEC_ENDED":                  ErrExecState,
	"EXEC_ID_REUSED":              ErrExecState,
	"EXEC_NOT_FOUND":              ErrExecNotFound,
	"FEATURE_UNSUPPORTED":         ErrUnsupported,
	"FILE_ALREADY_EXISTS":         ErrFile,
	"FILE_CHECKSUM_MISMATCH":      ErrFile,
	"FILE_CROSS_DEVICE":           ErrFile,
	"FILE_IO":                     ErrFile,
	"FILE_IS_DIRECTORY":           ErrFile,
	"FILE_NOT_DIRECTORY":          ErrFile,
	"FILE_NOT_FOUND":              ErrFile,
	"FILE_NOT_REGULAR":            ErrFile,
	"FILE_NOT_TEXT":               ErrFile,
	"FILE_PERMISSION_DENIED":      ErrFile,
	"FILE_READ_ONLY":              ErrFile,
	"FILE_TOO_LARGE":              ErrFile,
	"INTERNAL":                    ErrInternal,
	"MESSAGE_TOO_LARGE":           ErrInvalidRequest,
	"NO_TERMINAL":                 ErrExecState,
	"PAGE_TOKEN_EXPIRED":          ErrInvalidRequest,
	"PAGE_TOKEN_INVALID":          ErrInvalidRequest,
	"PATH_INVALID":                ErrInvalidRequest,
	"PATTERN_INVALID":             ErrInvalidRequest,
	"POLICY_DENIED":               ErrPermissionDenied,
	"PORT_CLOSED":                 ErrPortClosed,
	"POSITION_INVALID":            ErrExecState,
	"PROVIDER_UNAVAILABLE":        ErrUnavailable,
	"QUOTA_EXCEEDED":              ErrQuotaExceeded,
	"READER_TOO_SLOW":             ErrConnectionLost,
	"REQUEST_INVALID":             ErrInvalidRequest,
	"SANDBOX_EXPIRED":             ErrSandboxNotFound,
	"SANDBOX_NOT_ACTIVE":          ErrSandboxNotActive,
	"SANDBOX_NOT_FOUND":           ErrSandboxNotFound,
	"SANDBOX_REPLACED":            ErrSandboxReplaced,
	"SANDBOX_RESOURCES_EXHAUSTED": ErrCommandStart,
	"SANDBOX_SPEC_DIFFERS":        ErrSandboxExists,
	"SANDBOX_START_FAILED":        ErrSandboxStart,
	"SANDBOX_START_TIMEOUT":       ErrSandboxStart,
	"SERVER_SHUTTING_DOWN":        ErrUnavailable,
	"STDIN_CLOSED":                ErrExecState,
	"STDIN_OFFSET_MISMATCH":       ErrExecState,
	"TEMPLATE_FORBIDS":            ErrPermissionDenied,
	"TEMPLATE_NOT_FOUND":          ErrTemplateNotFound,
	"TOO_MANY_CONNECTIONS":        ErrQuotaExceeded,
	"UPLOAD_BUSY":                 ErrFile,
	"UPLOAD_NOT_FOUND":            ErrFile,
	"UPLOAD_OFFSET_MISMATCH":      ErrFile,
	"UPLOAD_OUT_OF_ORDER":         ErrFile,
	"WORKING_DIRECTORY_INVALID":   ErrCommandStart,
}

// byCode maps codes without a reason to kinds of error, as clients/error_codes.json
// does.
var byCode = map[codes.Code]error{
	codes.Canceled:          ErrCallCancelled,
	codes.DataLoss:          ErrInternal,
	codes.DeadlineExceeded:  ErrDeadlineExceeded,
	codes.Internal:          ErrInternal,
	codes.InvalidArgument:   ErrInvalidRequest,
	codes.OutOfRange:        ErrInvalidRequest,
	codes.PermissionDenied:  ErrPermissionDenied,
	codes.ResourceExhausted: ErrQuotaExceeded,
	codes.Unauthenticated:   ErrAuthentication,
	codes.Unavailable:       ErrUnavailable,
	codes.Unimplemented:     ErrUnsupported,
	codes.Unknown:           ErrInternal,
}

// classOf returns the kind of an error, or nil if it has none.
func classOf(reason Reason, code codes.Code) error {
	if reason == "" && code == codes.ResourceExhausted {
		return ErrInvalidRequest // of gRPC itself: a message is larger than its limit
	}
	if kind, ok := byReason[reason]; ok {
		return kind
	}
	return byCode[code]
}

// codeOf returns the code that goes with the reason of a single file's failure.
func codeOf(reason Reason) codes.Code {
	switch reason {
	case ErrFileNotFound:
		return codes.NotFound
	case ErrFilePermissionDenied, "POLICY_DENIED":
		return codes.PermissionDenied
	case ErrFileAlreadyExists:
		return codes.AlreadyExists
	case ErrPathInvalid, "REQUEST_INVALID":
		return codes.InvalidArgument
	case "FILE_TOO_LARGE", "DISK_FULL":
		return codes.ResourceExhausted
	case "FILE_CHECKSUM_MISMATCH":
		return codes.DataLoss
	case "UPLOAD_OFFSET_MISMATCH":
		return codes.OutOfRange
	case "UPLOAD_BUSY":
		return codes.Aborted
	case "FILE_IO", "INTERNAL":
		return codes.Internal
	}
	return codes.FailedPrecondition
}
