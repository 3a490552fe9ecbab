package server

import (
	"context"
	"strings"
	"sync"
	"testing"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
)

// endReporter is a substrate that tells how an incarnation ended: what it says
// first, then what next, and the last for ever.
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

// A command ends as its incarnation did, where the substrate has made the
// sandbox anew by itself or is about to.
func TestEndOfAnIncarnation(t *testing.T) {
	const why = "container main ended with code 137, OOMKilled"
	killed := providers.Ending{Known: true, Message: why, Failure: providers.FailureOutOfMemory}
	remade := func(w *world, p *place) { w.provider.remake(p) }
	for name, c := range map[string]struct {
		meanwhile func(*world, *place)
		says      []providers.Ending
		exit      sandboxv1.ExitReason
		said      string
	}{
		"C5 out of memory, and made anew": {remade, []providers.Ending{killed}, sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY, why},
		"C5 told late":                    {remade, []providers.Ending{{Pending: true}, {Pending: true}, killed}, sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY, why},
		"for another reason": {remade, []providers.Ending{{Known: true, Message: "ended with code 3"}},
			sandboxv1.ExitReason_EXIT_REASON_LOST, "ended with code 3"},
		"nobody says": {remade, []providers.Ending{{}}, sandboxv1.ExitReason_EXIT_REASON_LOST, "made anew"},
		"C5 not made anew yet": {func(w *world, p *place) {
			w.provider.mu.Lock()
			p.info.State = providers.StateCreating
			w.provider.mu.Unlock()
			p.cut()
		}, []providers.Ending{{Pending: true}, killed}, sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY, why},
	} {
		t.Run(name, func(t *testing.T) {
			h := &endReporter{says: c.says}
			w := newWorld(t, func(config *Config) {
				h.Provider = config.Provider
				config.Provider = h
			})
			w.provider.script.execute = hang
			before := w.create("a").GetIncarnation()
			stream, err := w.client.Execute(t.Context(), &sandboxv1.ExecuteRequest{SandboxId: "a",
				Command: &sandboxv1.ExecuteRequest_Shell{Shell: "x"}})
			if err != nil {
				t.Fatal(err)
			}
			if m, err := stream.Recv(); err != nil || m.GetStarted() == nil {
				t.Fatalf("%v %v", m, err)
			}
			c.meanwhile(w, w.place("a"))
			m, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			end := m.GetExited()
			if end.GetReason() != c.exit || end.ExitCode != nil || !strings.Contains(end.GetMessage(), c.said) {
				t.Errorf("got %v, want %v: %s", m, c.exit, c.said)
			}
			h.mu.Lock()
			defer h.mu.Unlock()
			for _, incarnation := range h.asked {
				if incarnation != before {
					t.Errorf("asked for %q, the command ran in %q", incarnation, before)
				}
			}
		})
	}
}
