package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
)

const errorDomain = "sandgate"

// row is what one ErrorReason means on the wire.
type row struct {
	code codes.Code
	// retry is how long a caller should wait before it tries again; 0: the
	// error does not go away by itself.
	retry time.Duration
	// agent is true where an agent may be the one who says so. Any other
	// reason from an agent is a breach of the protocol.
	agent bool
}

// reasons is the one table from reason to code.
var reasons = map[sandboxv1.ErrorReason]row{
	sandboxv1.ErrorReason_ERROR_REASON_REQUEST_INVALID:             {code: codes.InvalidArgument, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_PATH_INVALID:                {code: codes.InvalidArgument, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_PATTERN_INVALID:             {code: codes.InvalidArgument, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_UPLOAD_OUT_OF_ORDER:         {code: codes.InvalidArgument, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_MESSAGE_TOO_LARGE:           {code: codes.ResourceExhausted, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_CREDENTIALS_INVALID:         {code: codes.Unauthenticated},
	sandboxv1.ErrorReason_ERROR_REASON_POLICY_DENIED:               {code: codes.PermissionDenied, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_TEMPLATE_FORBIDS:            {code: codes.PermissionDenied},
	sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_NOT_FOUND:           {code: codes.NotFound},
	sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_EXPIRED:             {code: codes.NotFound},
	sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_SPEC_DIFFERS:        {code: codes.AlreadyExists},
	sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_NOT_ACTIVE:          {code: codes.FailedPrecondition, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_REPLACED:            {code: codes.FailedPrecondition, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_TEMPLATE_NOT_FOUND:          {code: codes.NotFound},
	sandboxv1.ErrorReason_ERROR_REASON_PAGE_TOKEN_INVALID:          {code: codes.InvalidArgument, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_PAGE_TOKEN_EXPIRED:          {code: codes.FailedPrecondition, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_START_FAILED:        {code: codes.FailedPrecondition},
	sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_START_TIMEOUT:       {code: codes.DeadlineExceeded},
	sandboxv1.ErrorReason_ERROR_REASON_EXEC_NOT_FOUND:              {code: codes.NotFound, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_EXEC_ID_REUSED:              {code: codes.AlreadyExists, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_COMMAND_NOT_FOUND:           {code: codes.NotFound, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_COMMAND_NOT_EXECUTABLE:      {code: codes.FailedPrecondition, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_WORKING_DIRECTORY_INVALID:   {code: codes.FailedPrecondition, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_EXEC_ENDED:                  {code: codes.FailedPrecondition, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_STDIN_CLOSED:                {code: codes.FailedPrecondition, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_STDIN_OFFSET_MISMATCH:       {code: codes.OutOfRange, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_NO_TERMINAL:                 {code: codes.FailedPrecondition, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_POSITION_INVALID:            {code: codes.OutOfRange, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_READER_TOO_SLOW:             {code: codes.ResourceExhausted, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_RESOURCES_EXHAUSTED: {code: codes.ResourceExhausted, retry: time.Second, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_FILE_NOT_FOUND:              {code: codes.NotFound, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_FILE_PERMISSION_DENIED:      {code: codes.PermissionDenied, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_FILE_IS_DIRECTORY:           {code: codes.FailedPrecondition, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_FILE_NOT_DIRECTORY:          {code: codes.FailedPrecondition, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_FILE_NOT_REGULAR:            {code: codes.FailedPrecondition, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_FILE_ALREADY_EXISTS:         {code: codes.AlreadyExists, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_DIRECTORY_NOT_EMPTY:         {code: codes.FailedPrecondition, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_FILE_TOO_LARGE:              {code: codes.ResourceExhausted, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_DISK_FULL:                   {code: codes.ResourceExhausted, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_FILE_NOT_TEXT:               {code: codes.FailedPrecondition, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_FILE_CHECKSUM_MISMATCH:      {code: codes.DataLoss, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_EDIT_TEXT_NOT_FOUND:         {code: codes.NotFound, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_EDIT_NOT_UNIQUE:             {code: codes.FailedPrecondition, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_UPLOAD_NOT_FOUND:            {code: codes.NotFound, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_UPLOAD_OFFSET_MISMATCH:      {code: codes.OutOfRange, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_UPLOAD_BUSY:                 {code: codes.Aborted, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_FILE_IO:                     {code: codes.Internal, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_FILE_CROSS_DEVICE:           {code: codes.FailedPrecondition, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_FILE_READ_ONLY:              {code: codes.FailedPrecondition, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_FEATURE_UNSUPPORTED:         {code: codes.Unimplemented, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED:              {code: codes.ResourceExhausted, retry: 5 * time.Second},
	sandboxv1.ErrorReason_ERROR_REASON_PROVIDER_UNAVAILABLE:        {code: codes.Unavailable, retry: time.Second},
	sandboxv1.ErrorReason_ERROR_REASON_AGENT_UNAVAILABLE:           {code: codes.Unavailable, retry: time.Second},
	sandboxv1.ErrorReason_ERROR_REASON_AGENT_CANNOT_START:          {code: codes.FailedPrecondition},
	sandboxv1.ErrorReason_ERROR_REASON_AGENT_MISBEHAVED:            {code: codes.DataLoss},
	sandboxv1.ErrorReason_ERROR_REASON_SERVER_SHUTTING_DOWN:        {code: codes.Unavailable, retry: 500 * time.Millisecond},
	sandboxv1.ErrorReason_ERROR_REASON_AGENT_VERSION_UNSUPPORTED:   {code: codes.FailedPrecondition},
	sandboxv1.ErrorReason_ERROR_REASON_CALL_CANCELLED:              {code: codes.Canceled, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_CALL_DEADLINE_EXCEEDED:      {code: codes.DeadlineExceeded, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_INTERNAL:                    {code: codes.Internal, agent: true},
}

// sentinels maps a provider's errors; the first that matches counts.
var sentinels = []struct {
	err    error
	reason sandboxv1.ErrorReason
}{
	{providers.ErrNotFound, sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_NOT_FOUND},
	{providers.ErrExists, sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_SPEC_DIFFERS},
	{providers.ErrNotActive, sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_NOT_ACTIVE},
	{providers.ErrReplaced, sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_REPLACED},
	// Only the server sets the condition that gives rise to it, and handles it.
	{providers.ErrInUse, sandboxv1.ErrorReason_ERROR_REASON_INTERNAL},
	{providers.ErrInvalid, sandboxv1.ErrorReason_ERROR_REASON_REQUEST_INVALID},
	{providers.ErrForbidden, sandboxv1.ErrorReason_ERROR_REASON_POLICY_DENIED},
	{providers.ErrUnsupported, sandboxv1.ErrorReason_ERROR_REASON_FEATURE_UNSUPPORTED},
	{providers.ErrExhausted, sandboxv1.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED},
	{providers.ErrAgentCannotStart, sandboxv1.ErrorReason_ERROR_REASON_AGENT_CANNOT_START},
	{providers.ErrStartTimeout, sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_START_TIMEOUT},
	{providers.ErrStartFailed, sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_START_FAILED},
	{providers.ErrUnavailable, sandboxv1.ErrorReason_ERROR_REASON_PROVIDER_UNAVAILABLE},
	{providers.ErrTokenExpired, sandboxv1.ErrorReason_ERROR_REASON_PAGE_TOKEN_EXPIRED},
	{providers.ErrTokenInvalid, sandboxv1.ErrorReason_ERROR_REASON_PAGE_TOKEN_INVALID},
}

// fault is an error whose reason and text are meant for the caller.
type fault struct {
	reason     sandboxv1.ErrorReason
	message    string
	meta       map[string]string
	violations []*errdetails.BadRequest_FieldViolation
	cause      error // for the log, never shown
	final      bool  // there is no RetryInfo, whatever the reason
}

func (f *fault) Error() string {
	if f.cause != nil {
		return f.message + ": " + f.cause.Error()
	}
	return f.message
}

func (f *fault) Unwrap() error { return f.cause }

func faultf(reason sandboxv1.ErrorReason, format string, args ...any) *fault {
	return &fault{reason: reason, message: fmt.Sprintf(format, args...)}
}

// with adds metadata.
func (f *fault) with(key, value string) *fault {
	if f.meta == nil {
		f.meta = make(map[string]string, 2)
	}
	f.meta[key] = value
	return f
}

// because sets the cause that the log shows.
func (f *fault) because(err error) *fault {
	f.cause = err
	return f
}

var errShuttingDown = faultf(sandboxv1.ErrorReason_ERROR_REASON_SERVER_SHUTTING_DOWN,
	"the server is shutting down; commands run on, attach again at another replica or after the restart")

// fold turns any error into a fault; nil stays nil. A context's end counts by
// its cause, so that a shutdown is not reported as the caller's wish.
func fold(ctx context.Context, err error) *fault {
	if err == nil {
		return nil
	}
	var f *fault
	if errors.As(err, &f) {
		return f
	}
	if reason, ok := contextReason(err); ok {
		if cause := context.Cause(ctx); errors.As(cause, &f) {
			return f
		}
		if reason == sandboxv1.ErrorReason_ERROR_REASON_CALL_DEADLINE_EXCEEDED {
			return faultf(reason, "the call's deadline ended").because(err)
		}
		return faultf(reason, "the caller cancelled the call").because(err)
	}
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			// The sentinel's own words repeat what the reason says.
			f = faultf(s.reason, "%s", strings.TrimSuffix(err.Error(), ": "+s.err.Error()))
			var inactive *providers.NotActiveError
			if errors.Is(s.err, providers.ErrNotActive) && errors.As(err, &inactive) {
				f = f.inState(inactive.State, inactive.Failure)
			}
			return f
		}
	}
	if st, ok := status.FromError(err); ok && errors.Is(ctx.Err(), context.Canceled) && st.Code() == codes.Canceled {
		if errors.As(context.Cause(ctx), &f) {
			return f
		}
		return faultf(sandboxv1.ErrorReason_ERROR_REASON_CALL_CANCELLED, "the caller cancelled the call").because(err)
	}
	return faultf(sandboxv1.ErrorReason_ERROR_REASON_INTERNAL, "internal error").because(err)
}

func contextReason(err error) (sandboxv1.ErrorReason, bool) {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return sandboxv1.ErrorReason_ERROR_REASON_CALL_DEADLINE_EXCEEDED, true
	case errors.Is(err, context.Canceled):
		return sandboxv1.ErrorReason_ERROR_REASON_CALL_CANCELLED, true
	default:
		return 0, false
	}
}

// reasonName is a reason as ErrorInfo carries it.
func reasonName(r sandboxv1.ErrorReason) string {
	const prefix = "ERROR_REASON_"
	return r.String()[len(prefix):]
}

// Bounds of what an error says. All of it travels in one trailer, twice in part
// and encoded, and C-core clients drop a trailer of more than 8 KiB, the reason
// with it.
const (
	maxMessage    = 1_024
	maxMeta       = 1_024
	maxViolations = 1_536
)

// shorten returns f within the bounds.
func (f *fault) shorten() *fault {
	short := *f
	short.message = clip(f.message, maxMessage)
	short.meta, short.violations = nil, nil
	left := maxMeta
	for _, k := range sortedKeys(f.meta) {
		value := clip(f.meta[k], maxAgentText)
		if left -= len(k) + len(value); left < 0 {
			break
		}
		if short.meta == nil {
			short.meta = make(map[string]string, len(f.meta))
		}
		short.meta[k] = value
	}
	left = maxViolations
	for _, v := range f.violations {
		one := &errdetails.BadRequest_FieldViolation{Field: clip(v.GetField(), maxAgentText), Description: clip(v.GetDescription(), maxAgentText)}
		if left -= len(one.GetField()) + len(one.GetDescription()) + 8; left < 0 {
			break
		}
		short.violations = append(short.violations, one)
	}
	return &short
}

// status builds what goes on the wire. requestID lets people find an internal
// error's cause in the log.
func (f *fault) status(requestID string) *status.Status {
	f = f.shorten()
	r, ok := reasons[f.reason]
	if !ok {
		r = reasons[sandboxv1.ErrorReason_ERROR_REASON_INTERNAL]
	}
	meta := f.meta
	if f.reason == sandboxv1.ErrorReason_ERROR_REASON_INTERNAL && requestID != "" {
		meta = maps.Clone(meta)
		if meta == nil {
			meta = make(map[string]string, 1)
		}
		meta["request_id"] = requestID
	}
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{
		Reason: reasonName(f.reason), Domain: errorDomain, Metadata: meta,
	}}
	if len(f.violations) > 0 {
		details = append(details, &errdetails.BadRequest{FieldViolations: f.violations})
	}
	if r.retry > 0 && !f.final {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(r.retry)})
	}
	st := status.New(r.code, f.message)
	if detailed, err := st.WithDetails(details...); err == nil {
		return detailed
	}
	return st
}
