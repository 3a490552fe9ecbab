package fault_test

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sandgate/sandgate/agent/fault"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

func TestStatus(t *testing.T) {
	err := error(fault.New(codes.InvalidArgument, sandboxv1.ErrorReason_ERROR_REASON_PATH_INVALID,
		"bad \xff path", map[string]string{"path": "a\xffb"}).
		Field("path").Retry(3 * time.Second).Because(fs.ErrNotExist))

	if !errors.Is(err, fs.ErrNotExist) {
		t.Error("the cause is lost")
	}
	st, ok := status.FromError(err)
	if !ok || st.Code() != codes.InvalidArgument || st.Message() != "bad \uFFFD path" {
		t.Fatalf("status = %v", st)
	}
	var info, bad, retry bool
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			info = d.GetReason() == "PATH_INVALID" && d.GetDomain() == "sandgate" && d.GetMetadata()["path"] == "a\uFFFDb"
		case *errdetails.BadRequest:
			bad = len(d.GetFieldViolations()) == 1 && d.GetFieldViolations()[0].GetField() == "path"
		case *errdetails.RetryInfo:
			retry = d.GetRetryDelay().AsDuration() == 3*time.Second
		}
	}
	if !info || !bad || !retry {
		t.Errorf("ErrorInfo %v, BadRequest %v, RetryInfo %v in %v", info, bad, retry, st.Details())
	}
}

// A status is small, however long what it names is.
func TestStatusIsSmallWhateverItNames(t *testing.T) {
	long := strings.Repeat("é", 5<<20)
	st, _ := status.FromError(fault.New(codes.NotFound, sandboxv1.ErrorReason_ERROR_REASON_COMMAND_NOT_FOUND,
		long, map[string]string{"command": long}).Field("argv"))
	if n := proto.Size(st.Proto()); n < 4<<10 || n > 8<<10 || !strings.HasPrefix(st.Message(), "éé") {
		t.Errorf("a status of %d bytes", n)
	}
}
