package server

import (
	"context"
	"strings"
	"sync"
	"testing"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
)

// endReporter is a substrate that reports how an incarnation ended: each report
// once in order, the last one for ever.
type endReporter struct {
	providers.Provider
	mu    sync.Mutex
	says  []providers.Ending
	asked []string // incarnations
}

func (h *endReporter) Ending(_ context.Context, _, incarnation string) (providers.Ending, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked = append(h.asked, incarnation)
	e := h.says[0]
	if len(h.says) > 1 {
		h.says = h.says[1:]
	}
	return e, nil
}

// A command ends with the cause that ended its incarnation, also where the
// substrate recreates the sandbox by itself.
func TestExitReasonOfALostIncarnation(t *testing.T) {
	const why = "container main ended with code 137, OOMKilled"
	killed := providers.Ending{Known: true, Message: why, Failure: providers.FailureOutOfMemory}
	remade := func(h *harness, p *scriptedSandbox) { h.provider.remake(p) }
	for name, c := range map[string]struct {
		meanwhile func(*harness, *scriptedSandbox)
		says      []providers.Ending
		exit      sandboxv1.ExitReason
		said      string
	}{
		"out of memory, and recreated": {remade, []providers.Ending{killed}, sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY, why},
		"reported late":                {remade, []providers.Ending{{Pending: true}, {Pending: true}, killed}, sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY, why},
		"for another reason": {remade, []providers.Ending{{Known: true, Message: "ended with code 3"}},
			sandboxv1.ExitReason_EXIT_REASON_LOST, "ended with code 3"},
		"not reported": {remade, []providers.Ending{{}}, sandboxv1.ExitReason_EXIT_REASON_LOST, "recreated"},
		"not recreated yet": {func(h *harness, p *scriptedSandbox) {
			h.provider.mu.Lock()
			p.info.State = providers.StateCreating
			h.provider.mu.Unlock()
			p.cut()
		}, []providers.Ending{{Pending: true}, killed}, sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY, why},
	} {
		t.Run(name, func(t *testing.T) {
			reporter := &endReporter{says: c.says}
			h := newHarness(t, func(config *Config) {
				reporter.Provider = config.Provider
				config.Provider = reporter
			})
			h.provider.script.execute = hang
			before := h.create("a").GetIncarnation()
			stream, err := h.client.Execute(t.Context(), &sandboxv1.ExecuteRequest{SandboxId: "a",
				Command: &sandboxv1.ExecuteRequest_Shell{Shell: "x"}})
			if err != nil {
				t.Fatal(err)
			}
			if m, err := stream.Recv(); err != nil || m.GetStarted() == nil {
				t.Fatalf("%v %v", m, err)
			}
			c.meanwhile(h, h.sandbox("a"))
			m, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			end := m.GetExited()
			if end.GetReason() != c.exit || end.ExitCode != nil || !strings.Contains(end.GetMessage(), c.said) {
				t.Errorf("got %v, want %v: %s", m, c.exit, c.said)
			}
			reporter.mu.Lock()
			defer reporter.mu.Unlock()
			for _, incarnation := range reporter.asked {
				if incarnation != before {
					t.Errorf("asked for %q, the command ran in %q", incarnation, before)
				}
			}
		})
	}
}
