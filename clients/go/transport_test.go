package sandgate

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
)

func TestBroken(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want bool
	}{
		{"no server", &Error{Code: codes.Unavailable}, true},
		{"no agent", &Error{Code: codes.Unavailable, Reason: "AGENT_UNAVAILABLE"}, true},
		{"a stream that a proxy reset", fmt.Errorf("read: %w", &Error{Code: codes.Internal}), true},
		{"a stream that a proxy cancelled", &Error{Code: codes.Canceled}, true},
		{"a fault of the server", &Error{Code: codes.Internal, Reason: "INTERNAL"}, false},
		{"a call that the server cancelled", &Error{Code: codes.Canceled, Reason: "CALL_CANCELLED"}, false},
		{"a broken protocol", &Error{Code: codes.DataLoss}, false},
		{"a proxy that forbids the call", &Error{Code: codes.PermissionDenied}, false},
		{"an error of the caller's", errors.New("no such file"), false},
	} {
		if got := broken(tt.err); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
}
