package main

import (
	"errors"
	"testing"

	"google.golang.org/grpc/codes"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

func TestAdvice(t *testing.T) {
	failure := func(code codes.Code, reason sandgate.Reason, message string) error {
		return &sandgate.Error{Code: code, Reason: reason, Message: message, Metadata: map[string]string{"sandbox_id": "box"}}
	}
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"no failure of a call": {errors.New("no file"), "no file"},
		"the command to type": {
			failure(codes.AlreadyExists, "SANDBOX_SPEC_DIFFERS", "the sandbox exists; use another id"),
			"the sandbox exists (SANDBOX_SPEC_DIFFERS); take another id, or remove it with: sandgate rm box",
		},
		"unsupported": {
			failure(codes.Unimplemented, "FEATURE_UNSUPPORTED", "there are no URLs"),
			"there are no URLs (FEATURE_UNSUPPORTED); what the server can do is shown by: sandgate info",
		},
		"unsupported until the operator acts": {
			failure(codes.Unimplemented, "FEATURE_UNSUPPORTED", "there are no URLs; add a listener; restart"),
			"there are no URLs (FEATURE_UNSUPPORTED); add a listener; restart",
		},
	} {
		if got := advise(c.err); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
