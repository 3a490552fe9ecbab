package agentconn

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/fault"
)

func TestAgentErrors(t *testing.T) {
	long := strings.Repeat("é", 4000)
	var f *fault.Error
	if err := Error(t.Context(), agentStatus(codes.NotFound, "FILE_NOT_FOUND", long)); !errors.As(err, &f) || f.Reason != sandboxv1.ErrorReason_ERROR_REASON_FILE_NOT_FOUND || len(f.Message) > 512 {
		t.Fatalf("got %v", f)
	}
	if err := Error(t.Context(), status.Error(codes.Unavailable, "gone")); !errors.Is(err, ErrBroken) {
		t.Fatalf("got %v", err)
	}
	// The table decides the code, not the agent.
	if err := Error(t.Context(), agentStatus(codes.Unauthenticated, "FILE_NOT_FOUND", "x")); !errors.As(err, &f) || f.Status("").Code() != codes.NotFound {
		t.Fatalf("got %v", f)
	}
}

// agentStatus is an error as agents make it.
func agentStatus(code codes.Code, reason, message string) error {
	st, err := status.New(code, message).WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: "sandgate"})
	if err != nil {
		panic(err)
	}
	return st.Err()
}
