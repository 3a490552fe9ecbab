package conformance

import (
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// wantReason wants an error with one of the reasons.
func wantReason(t T, what string, err error, reasons ...string) {
	t.Helper()
	for _, r := range reasons {
		if errors.Is(err, sandgate.Reason(r)) || agentReason(err) == r {
			return
		}
	}
	t.Errorf("%s: got %v, want %v", what, err, reasons)
}

// agentReason returns the reason in an error of an agent that is called without a server
// and its client between.
func agentReason(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}

// untilOutput reads a process until it has written want.
func untilOutput(t T, p *sandgate.Process, want string) {
	t.Helper()
	var got string
	for event, err := range p.Events() {
		if err != nil {
			t.Fatalf("after %q: %v", got, err)
		}
		if event.Exited != nil {
			t.Fatalf("it ended after %q: %v", got, event.Exited)
		}
		if got += string(event.Output.GetData()); got == want {
			return
		}
	}
}
