package kubernetes

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// tsx runs a TypeScript program with the client of this repository.
const tsx = "../../clients/ts/node_modules/.bin/tsx"

// suspend has each client suspend and resume a sandbox of its own, all at once.
// The server must have a template "durable" with a volume at /data.
func (i installed) suspend(t *testing.T) {
	for name, program := range map[string][2]string{
		"through the Python client":     {python, "testdata/suspend.py"},
		"through the TypeScript client": {tsx, "testdata/suspend.mts"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := os.Stat(program[0]); err != nil {
				t.Skipf("needs the client's environment, which make setup makes: %v", err)
			}
			if out := i.run(t, program[0], program[1]); !strings.HasSuffix(out, "suspended and resumed\n") {
				t.Errorf("%q", out)
			}
		})
	}
	t.Run("through the command line", func(t *testing.T) {
		t.Parallel()
		i.suspendByHand(t)
	})
}

func (i installed) suspendByHand(t *testing.T) {
	cli := func(args ...string) string {
		t.Helper()
		return strings.TrimSpace(i.run(t, binary("sandgate"), args...))
	}
	about := func(id string) (info struct{ State, Incarnation string }) {
		t.Helper()
		if err := json.Unmarshal([]byte(cli("info", id, "--output", "json")), &info); err != nil {
			t.Fatal(err)
		}
		return info
	}
	id := cli("create", "--template", "durable")
	before := about(id)
	cli("exec", id, "-c", "echo kept > /data/file; echo lost > /workspace/file")
	running := cli("exec", "--detach", id, "--", "sleep", "600")

	if got := cli("suspend", id); got != id {
		t.Errorf("suspend: %q", got)
	}
	if got := cli("ls"); !regexp.MustCompile(id + `\s+suspended`).MatchString(got) {
		t.Errorf("ls: %s", got)
	}
	if got := about(id).State; got != "SANDBOX_STATE_SUSPENDED" {
		t.Errorf("info: %s", got)
	}
	const refused = "(SANDBOX_NOT_ACTIVE); bring it back with: sandgate resume "
	if code, said := i.fails(t, "exec", id, "--", "true"); code != 125 || !strings.HasSuffix(said, refused+id+"\n") || strings.Count(said, "\n") != 1 {
		t.Errorf("exec while it is suspended: %d, %q", code, said)
	}

	if got := cli("resume", id); got != id {
		t.Errorf("resume: %q", got)
	}
	if after := about(id); after.State != "SANDBOX_STATE_ACTIVE" || after.Incarnation == before.Incarnation {
		t.Errorf("after %+v: %+v", before, after)
	}
	if got := cli("exec", id, "-c", "cat /data/file; ls /workspace"); got != "kept" {
		t.Errorf("what is left: %q", got)
	}
	if got := cli("ps", id); strings.Contains(got, running) {
		t.Errorf("ps: %s", got)
	}
	cli("rm", id)
}

// fails runs the command line, and returns its exit code and standard error.
func (i installed) fails(t *testing.T, args ...string) (int, string) {
	t.Helper()
	cmd := exec.CommandContext(limit(t), binary("sandgate"), args...)
	cmd.Env = i.environment
	var said strings.Builder
	cmd.Stderr = &said
	err := cmd.Run()
	if end := (*exec.ExitError)(nil); err != nil && !errors.As(err, &end) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), said.String()
}
