//go:build linux

package local_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/providers/providertest"
)

// TestSandboxReportsThatItsAgentRanOutOfMemory: the sandbox reports that the OOM killer ended its agent.
func TestSandboxReportsThatItsAgentRanOutOfMemory(t *testing.T) {
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) { testOutOfMemory(t, runtime) })
	}
}

func testOutOfMemory(t *testing.T, runtime string) {
	config := testConfigOf(t, runtime)
	p := open(t, config)
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	spec := providers.Spec{Hash: "h", Network: providers.NetworkNone, Resources: local.DefaultResources()}
	spec.Resources.MemoryBytes = 96 << 20
	if _, err := providertest.Create(t.Context(), p, "hog", spec); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Delete(t.Context(), "hog", providers.Condition{}); err != nil {
			t.Error(err)
		}
	}()
	// Commands are the kernel's first choice otherwise.
	if err := local.OfferInit(p, "hog"); err != nil {
		t.Fatal(err)
	}
	// It is killed with the sandbox, so its exit status does not matter.
	_ = exec.CommandContext(t.Context(), runtime, "--root", filepath.Join(config.StateDir, "runtime", runtime), "exec", "hog", "tail", "/dev/zero").Run()
	deadline := time.Now().Add(30 * time.Second)
	for {
		info, err := p.Get(t.Context(), "hog")
		if err != nil {
			t.Fatal(err)
		}
		if info.State == providers.StateFailed {
			if info.Failure != providers.FailureOutOfMemory || !strings.Contains(info.Message, "memory") {
				t.Errorf("it failed with %v: %s", info.Failure, info.Message)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("it is still %v", info.State)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
