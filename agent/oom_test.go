//go:build memorycgroup

package agent

import (
	"os"
	"path/filepath"
	"testing"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// With a memory controller in cgroup v2, each command has its own counter: running out of
// memory is certain and not inferred, and other commands are unaffected. The build tag
// asserts that the machine has a memory controller.
func TestMemoryCgroupMakesOutOfMemoryCertain(t *testing.T) {
	h := start(t, setup{cgroup: true})
	for file, value := range map[string]string{"memory.max": "67108864", "memory.swap.max": "0"} {
		if err := os.WriteFile(filepath.Join(h.cgroup, file), []byte(value), 0); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	bystander := make(chan result, 1)
	go func() { bystander <- h.run(t, shell("sleep 3; exit 7")) }()
	for name, c := range map[string]struct {
		request *sandboxv1.ExecuteRequest
		want    sandboxv1.ExitReason
	}{
		"the started process":              {argv("tail", "/dev/zero"), sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY},
		"one below it":                     {shell("tail /dev/zero; exit $?"), sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY},
		"one that the command got on from": {shell("tail /dev/zero; exit 3"), sandboxv1.ExitReason_EXIT_REASON_EXITED},
		"none of it, by SIGKILL":           {shell("kill -9 $$"), sandboxv1.ExitReason_EXIT_REASON_SIGNALED},
	} {
		t.Run(name, func(t *testing.T) {
			r := h.run(t, c.request)
			x := r.exited
			if r.err != nil || x.GetReason() != c.want || x.GetInferred() {
				t.Fatalf("%v, %v", x, r.err)
			}
			if hog := c.want != sandboxv1.ExitReason_EXIT_REASON_SIGNALED; hog &&
				(x.GetPeakMemoryBytes() < 60<<20 || x.GetMemoryScope() != sandboxv1.MemoryScope_MEMORY_SCOPE_COMMAND) {
				t.Errorf("%d bytes of %v", x.GetPeakMemoryBytes(), x.GetMemoryScope())
			}
		})
	}
	if r := <-bystander; r.err != nil || r.exited.GetReason() != sandboxv1.ExitReason_EXIT_REASON_EXITED || r.exited.GetExitCode() != 7 {
		t.Errorf("a command beside them: %v, %v", r.exited, r.err)
	}
}
