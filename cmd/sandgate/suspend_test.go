package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sandgate/sandgate/clients/go/fake"
)

func TestSuspendAndResume(t *testing.T) {
	server := fake.Start(t, &fake.Server{Play: play})
	must(t, server, "create", "one")
	must(t, server, "create", "two")
	if got := run(t.Context(), server, "", "suspend", "one", "none", "two"); got.code != failed || got.stdout != "one\ntwo\n" || !strings.Contains(got.stderr, "SANDBOX_NOT_FOUND") {
		t.Errorf("suspend: %+v", got)
	}
	if got := must(t, server, "ls"); strings.Count(got, "suspended") != 2 {
		t.Errorf("ls: %q", got)
	}
	const refused = "sandgate: the sandbox is suspended (SANDBOX_NOT_ACTIVE); bring it back with: sandgate resume one\n"
	if got := run(t.Context(), server, "", "exec", "one", "--", "echo"); got.code != failed || got.stderr != refused {
		t.Errorf("exec: %+v", got)
	}
	for args, want := range map[string]string{"resume ": "one\ntwo\n:4\n", "resume one ": "two\n:4\n", "suspend ": ":4\n"} {
		if got := run(t.Context(), server, "", append([]string{"__complete"}, strings.Split(args, " ")...)...); got.stdout != want {
			t.Errorf("completion of %q: %+v", args, got)
		}
	}
	if got := must(t, server, "resume", "one"); got != "one\n" {
		t.Errorf("resume: %q", got)
	}
	if got := must(t, server, "exec", "one", "--", "echo", "back"); got != "back\n" {
		t.Errorf("exec: %q", got)
	}
	var resumed struct {
		Sandboxes []struct{ SandboxID, State, Incarnation string }
	}
	if err := json.Unmarshal([]byte(must(t, server, "resume", "two", "--output", "json")), &resumed); err != nil || len(resumed.Sandboxes) != 1 ||
		resumed.Sandboxes[0].State != "SANDBOX_STATE_ACTIVE" || resumed.Sandboxes[0].Incarnation != "first'" {
		t.Errorf("resume: %+v, %v", resumed, err)
	}
}

func TestProviderThatCannotSuspend(t *testing.T) {
	server := fake.Start(t, &fake.Server{CannotSuspend: true})
	must(t, server, "create", "box")
	for _, name := range []string{"suspend", "resume"} {
		got := run(t.Context(), server, "", name, "box", "another")
		const want = "sandgate: the provider fake cannot suspend sandboxes (FEATURE_UNSUPPORTED); what the server can do is shown by: sandgate info\n"
		if got.code != failed || got.stdout != "" || got.stderr != want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
