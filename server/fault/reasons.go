package fault

import (
	"time"

	"google.golang.org/grpc/codes"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
)

// Domain is the domain of every ErrorInfo.
const Domain = "sandgate"

// row describes one ErrorReason.
type row struct {
	code codes.Code
	// retry is how long a caller should wait before the next attempt. 0: the
	// error is permanent.
	retry time.Duration
	// agent is true if an agent may return the reason. Any other reason from an
	// agent breaks the protocol.
	agent bool
}

// reasons is the only table from reason to code.
var reasons = map[sandboxv1.ErrorReason]row{
	sandboxv1.ErrorReason_ERROR_REASON_REQUEST_INVALID:             {code: codes.InvalidArgument, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_PATH_INVALID:                {code: codes.InvalidArgument, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_PATTERN_INVALID:             {code: codes.InvalidArgument, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_UPLOAD_OUT_OF_ORDER:         {code: codes.InvalidArgument, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_MESSAGE_TOO_LARGE:           {code: codes.ResourceExhausted, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_CREDENTIALS_INVALID:         {code: codes.Unauthenticated},
	sandboxv1.ErrorReason_ERROR_REASON_POLICY_DENIED:               {code: codes.PermissionDenied, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_TEMPLATE_FORBIDS:            {code: codes.PermissionDenied},
	sandboxv1.ErrorReason_ERROR_REASON_CALL_FORBIDDEN:              {code: codes.PermissionDenied},
	sandboxv1.ErrorReason_ERROR_REASON_AUTHENTICATION_UNAVAILABLE:  {code: codes.Unavailable, retry: time.Second},
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
	sandboxv1.ErrorReason_ERROR_REASON_PORT_CLOSED:                 {code: codes.FailedPrecondition, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_CONNECTION_RESET:            {code: codes.Aborted, agent: true},
	sandboxv1.ErrorReason_ERROR_REASON_TOO_MANY_CONNECTIONS:        {code: codes.ResourceExhausted, retry: time.Second, agent: true},
}

// sentinels maps a provider's errors. The first match counts.
var sentinels = []struct {
	err    error
	reason sandboxv1.ErrorReason
}{
	{providers.ErrNotFound, sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_NOT_FOUND},
	{providers.ErrExists, sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_SPEC_DIFFERS},
	{providers.ErrNotActive, sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_NOT_ACTIVE},
	{providers.ErrReplaced, sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_REPLACED},
	// Only a condition that the server sets causes it, and the server handles it.
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

// ReasonName returns a reason as ErrorInfo carries it, without its prefix.
func ReasonName(r sandboxv1.ErrorReason) string {
	const prefix = "ERROR_REASON_"
	return r.String()[len(prefix):]
}

// CodeAndName returns a reason's code and name. An unknown reason, which an
// agent may send, is UNKNOWN.
func CodeAndName(r sandboxv1.ErrorReason) (codes.Code, string) {
	row, ok := reasons[r]
	if !ok {
		return codes.Unknown, "UNKNOWN"
	}
	return row.code, ReasonName(r)
}
