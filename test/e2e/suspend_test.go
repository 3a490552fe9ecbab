package e2e

import (
	"strings"
	"testing"
)

// Suspending fails with a provider that cannot, and the sandbox keeps running.
func TestProviderThatCannotSuspend(t *testing.T) {
	need(t)
	id := shared.create(t)
	for _, command := range []string{"suspend", "resume"} {
		got := shared.run("", command, id)
		if got.code != 125 || got.stdout != "" || strings.Count(got.stderr, "\n") != 1 ||
			!strings.Contains(got.stderr, "local cannot suspend") || !strings.Contains(got.stderr, "sandgate info") {
			t.Errorf("%s: %+v", command, got)
		}
	}
	if got := shared.must(t, "exec", id, "--", "echo", "awake"); got != "awake" {
		t.Errorf("got %q", got)
	}
}
