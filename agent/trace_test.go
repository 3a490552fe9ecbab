package agent

import (
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/sandgate/sandgate/agent/protocol"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

const sampledParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// A command's environment has the trace context of its call, unless the caller sets
// its own, and readers learn a sampled one while it runs and after its end.
func TestCommandGetsTheTraceContextOfItsCall(t *testing.T) {
	h := start(t, setup{})
	unsampled := strings.TrimSuffix(sampledParent, "1") + "0"
	own := shell(`echo "$TRACEPARENT $TRACESTATE"`)
	own.Env = map[string]string{"TRACEPARENT": "mine"}
	for name, c := range map[string]struct {
		parent, state []string
		request       *sandboxv1.ExecuteRequest
		stdout, head  string
	}{
		"none":             {stdout: " \n"},
		"sampled":          {parent: []string{sampledParent}, stdout: sampledParent + " \n", head: sampledParent},
		"state":            {parent: []string{sampledParent}, state: []string{"a=b"}, stdout: sampledParent + " a=b\n", head: sampledParent},
		"not sampled":      {parent: []string{unsampled}, stdout: unsampled + " \n"},
		"long state":       {parent: []string{unsampled}, state: []string{"a=" + strings.Repeat("b", 600)}, stdout: unsampled + " \n"},
		"the caller's own": {parent: []string{unsampled}, state: []string{"a=b"}, request: own, stdout: "mine \n"},
		"not one":          {parent: []string{"x"}, stdout: " \n"},
		"two":              {parent: []string{sampledParent, sampledParent}, stdout: " \n"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			r := c.request
			if r == nil {
				r = shell(`echo "$TRACEPARENT $TRACESTATE"`)
			}
			r.ExecId = strings.Map(func(r rune) rune {
				if r == ' ' || r == '\'' {
					return '-'
				}
				return r
			}, name)
			ctx := called(t, &agentv1.CallContext{})
			for _, v := range c.parent {
				ctx = metadata.AppendToOutgoingContext(ctx, protocol.TraceParentKey, v)
			}
			for _, v := range c.state {
				ctx = metadata.AppendToOutgoingContext(ctx, protocol.TraceStateKey, v)
			}
			s, err := h.Execute(ctx, r)
			if err != nil {
				t.Fatal(err)
			}
			got := collect(t, s.Recv, 0)
			if got.err != nil || string(got.stdout) != c.stdout {
				t.Errorf("stdout %q, %v, want %q", got.stdout, got.err, c.stdout)
			}
			for range 2 { // while the end is being recorded, or from the history
				a, err := h.Attach(testContext(t), &sandboxv1.AttachRequest{ExecId: r.GetExecId()})
				if err != nil {
					t.Fatal(err)
				}
				if again := collect(t, a.Recv, 0); string(again.stdout) != c.stdout {
					t.Errorf("attached: %q, %v", again.stdout, again.err)
				}
				md, err := a.Header()
				if v := strings.Join(md.Get(protocol.TraceParentKey), " "); err != nil || v != c.head {
					t.Errorf("attached: header %q, %v, want %q", v, err, c.head)
				}
			}
		})
	}
}
