package policy

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/fault"
)

// The largest error fits into the 8 KiB that C-core clients read, with its
// reason.
func TestLargestErrorFitsIntoATrailer(t *testing.T) {
	text := strings.Repeat("é", 4_000)
	f := fault.New(sandboxv1.ErrorReason_ERROR_REASON_PATH_INVALID, "%s", text)
	var v Violations
	for i := range 100 {
		f = f.With(fmt.Sprintf("key%d", i), text)
		v.Add(fmt.Sprintf("field[%d]", i), "%s", text)
		v.Add(fmt.Sprintf("other[%d]", i), "short")
	}
	var all *fault.Error
	if !errors.As(v.Err(), &all) {
		t.Fatal(v.Err())
	}
	f.Violations = all.Violations
	st := f.Status("id")
	details := (proto.Size(st.Proto()) + 2) / 3 * 4
	percent := 0
	for _, b := range []byte(st.Message()) {
		if percent++; b < ' ' || b > '~' || b == '%' {
			percent += 2
		}
	}
	const names = 200 // names of headers, and those of 32 bytes each that HTTP/2 counts
	if n := details + percent + names; n > 8<<10 {
		t.Errorf("the trailer has %d bytes: details %d, message %d", n, details, percent)
	}
	if info, ok := st.Details()[0].(*errdetails.ErrorInfo); !ok || info.GetReason() != "PATH_INVALID" {
		t.Error(st.Details())
	}
}
