package agent

import (
	"sync"
	"testing"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// TestEndOfEveryShortCommandIsReported runs commands that end at once while orphans keep the reaper busy:
// the end of each must be reported.
func TestEndOfEveryShortCommandIsReported(t *testing.T) {
	eachSetup(t, func(t *testing.T, h *harness) {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for i := range 100 {
					request := argv("/bin/true")
					if i%4 == 0 {
						request = shell("(:) & (:) &")
					}
					r := h.run(t, request)
					if r.err != nil || r.exited.GetReason() != sandboxv1.ExitReason_EXIT_REASON_EXITED {
						t.Errorf("command %d: %v, %v", i, r.exited, r.err)
						return
					}
				}
			})
		}
		wg.Wait()
	})
}
