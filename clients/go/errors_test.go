package sandgate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandgate/sandgate/clients/go/fake"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// The three clients keep one table: clients/errors.json. It must name every
// reason of the API.
func TestReasonsAreThoseOfTheTable(t *testing.T) {
	want := table(t, "../errors.json")
	got := map[string]string{}
	for reason, kind := range byReason {
		got[string(reason)] = kind.Error()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("byReason differs from clients/errors.json (-file +go):\n%s", diff)
	}
	for number, name := range sandboxv1.ErrorReason_name {
		if reason := strings.TrimPrefix(name, "ERROR_REASON_"); number != 0 && want[reason] == "" {
			t.Errorf("clients/errors.json has no %s", reason)
		}
	}
	for reason := range want {
		if _, ok := sandboxv1.ErrorReason_value["ERROR_REASON_"+reason]; !ok {
			t.Errorf("clients/errors.json has the reason %s, which the API does not", reason)
		}
	}
}

func TestCodesAreThoseOfTheTable(t *testing.T) {
	got := map[string]string{}
	for code, kind := range byCode {
		raw := map[codes.Code]string{}
		for name, number := range grpcCodes {
			raw[number] = name
		}
		got[raw[code]] = kind.Error()
	}
	if diff := cmp.Diff(table(t, "../error_codes.json"), got); diff != "" {
		t.Errorf("byCode differs from clients/error_codes.json (-file +go):\n%s", diff)
	}
}

// grpcCodes are the names that all languages share.
var grpcCodes = map[string]codes.Code{
	"CANCELLED": codes.Canceled, "UNKNOWN": codes.Unknown, "INVALID_ARGUMENT": codes.InvalidArgument,
	"DEADLINE_EXCEEDED": codes.DeadlineExceeded, "NOT_FOUND": codes.NotFound, "ALREADY_EXISTS": codes.AlreadyExists,
	"PERMISSION_DENIED": codes.PermissionDenied, "RESOURCE_EXHAUSTED": codes.ResourceExhausted,
	"FAILED_PRECONDITION": codes.FailedPrecondition, "ABORTED": codes.Aborted, "OUT_OF_RANGE": codes.OutOfRange,
	"UNIMPLEMENTED": codes.Unimplemented, "INTERNAL": codes.Internal, "UNAVAILABLE": codes.Unavailable,
	"DATA_LOSS": codes.DataLoss, "UNAUTHENTICATED": codes.Unauthenticated,
}

func table(t *testing.T, path string) map[string]string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]string{}
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestFromStatus(t *testing.T) {
	tests := []struct {
		name   string
		err    error
		is     []error
		not    []error
		text   string
		called string
	}{
		{
			name: "a reason", err: fake.Error(codes.NotFound, "SANDBOX_NOT_FOUND", `there is no sandbox "x"`),
			is:   []error{ErrSandboxNotFound, Reason("SANDBOX_NOT_FOUND")},
			not:  []error{ErrFile, ErrFileNotFound, Reason(""), context.Canceled},
			text: `there is no sandbox "x" (SANDBOX_NOT_FOUND)`, called: "SandboxNotFoundError",
		},
		{
			name: "a reason of a later version", err: fake.Error(codes.Unavailable, "MOON_PHASE", "wait"),
			is: []error{ErrUnavailable, Reason("MOON_PHASE")}, text: "wait (MOON_PHASE)", called: "UnavailableError",
		},
		{
			name: "no reason", err: status.Error(codes.NotFound, "what?"),
			not: []error{ErrSandboxNotFound, ErrFile}, text: "what?", called: "SandgateError",
		},
		{
			name: "fields", err: fake.Error(codes.InvalidArgument, "REQUEST_INVALID", "the request is malformed", &errdetails.BadRequest{
				FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "path", Description: "must be absolute"}},
			}),
			is: []error{ErrInvalidRequest}, text: "the request is malformed; path: must be absolute (REQUEST_INVALID)", called: "InvalidRequestError",
		},
		{
			name: "cancelled", err: status.FromContextError(context.Canceled).Err(),
			is: []error{ErrCallCancelled, context.Canceled}, not: []error{context.DeadlineExceeded},
			text: "context canceled", called: "CallCancelledError",
		},
		{
			name: "deadline", err: context.DeadlineExceeded,
			is: []error{ErrDeadlineExceeded, context.DeadlineExceeded}, not: []error{context.Canceled},
			text: "context deadline exceeded", called: "DeadlineExceededError",
		},
		{
			name: "another domain's reason", err: func() error {
				st, _ := status.New(codes.Internal, "proxy").WithDetails(&errdetails.ErrorInfo{Reason: "SANDBOX_NOT_FOUND", Domain: "elsewhere"})
				return st.Err()
			}(),
			is: []error{ErrInternal}, not: []error{ErrSandboxNotFound}, text: "proxy", called: "InternalError",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := fmt.Errorf("wrapped: %w", fromStatus(tt.err, "request-1"))
			e := (*Error)(nil)
			if !errors.As(err, &e) {
				t.Fatalf("%v is not an *Error", err)
			}
			if e.Error() != tt.text || e.Name() != tt.called || e.RequestID != "request-1" {
				t.Errorf("got %q, %s, %s", e.Error(), e.Name(), e.RequestID)
			}
			for _, target := range tt.is {
				if !errors.Is(err, target) {
					t.Errorf("is not %v", target)
				}
			}
			for _, target := range tt.not {
				if errors.Is(err, target) {
					t.Errorf("is %v", target)
				}
			}
		})
	}
	if err := fromStatus(io.EOF, ""); err != io.EOF { //nolint:errorlint // It must be the very same.
		t.Errorf("io.EOF became %v", err)
	}
	if err := fromStatus(nil, ""); err != nil {
		t.Errorf("nil became %v", err)
	}
}

func TestRetryAfter(t *testing.T) {
	err := fromStatus(fake.Error(codes.ResourceExhausted, "QUOTA_EXCEEDED", "enough", &errdetails.RetryInfo{RetryDelay: durationpb.New(3 * time.Second)}), "")
	e := (*Error)(nil)
	if !errors.As(err, &e) || e.RetryAfter != 3*time.Second || status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %+v", err)
	}
}
