package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// release builds server and agent as a version.
func release(t *testing.T, version string) (server, agent string) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"sandgate", "sandgate-agent"} {
		build := exec.Command("go", "build", "-buildvcs=false", "-ldflags", "-s -w -X main.version="+version,
			"-o", filepath.Join(dir, name), "github.com/sandgate/sandgate/cmd/"+name)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", name, err, out)
		}
	}
	return filepath.Join(dir, "sandgate"), filepath.Join(dir, "sandgate-agent")
}

// A sandbox and its commands outlive an upgrade of the server by a minor version and
// the downgrade: a running command is reattached without a lost byte, and the agent
// of the old version serves the new server.
func TestUpgrade(t *testing.T) {
	need(t)
	oldProgram, oldAgent := release(t, "0.1.9")
	newProgram, newAgent := release(t, "0.2.0")
	dir, err := os.MkdirTemp("", "sandgate-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(dir)
	swap := func(program, agent string) {
		t.Helper()
		if s.Daemon != nil {
			if err := s.Stop(); err != nil {
				t.Fatalf("%v\n%s", err, s.log)
			}
		}
		s.program, s.args = program, []string{"--agent", agent}
		if err := s.start(); err != nil {
			t.Fatal(err)
		}
	}
	swap(oldProgram, oldAgent)
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	id := s.must(t, "create")
	s.must(t, "exec", id, "-c", "echo kept > /workspace/file")

	// One caller stays through all swaps and must not notice them.
	follow := s.command(t.Context(), "exec", id, "-c", counting)
	var out, problems bytes.Buffer
	follow.Stdout, follow.Stderr = &out, &problems
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "the command runs", func() bool {
		return strings.Contains(s.must(t, "ps", id), counting[:20])
	})

	for _, step := range []struct{ name, program, agent string }{
		{"upgrade", newProgram, newAgent}, {"way back", oldProgram, oldAgent}, {"upgrade again", newProgram, newAgent},
	} {
		swap(step.program, step.agent)
		if got := s.must(t, "exec", id, "--", "cat", "/workspace/file"); got != "kept" {
			t.Errorf("%s: %q", step.name, got)
		}
		if got := s.must(t, "ps", id); !strings.Contains(got, counting[:20]) {
			t.Errorf("%s: the command is gone: %s", step.name, got)
		}
		other := s.must(t, "create")
		if got := s.must(t, "exec", other, "--", "echo", step.name); got != step.name {
			t.Errorf("%s: %q in a sandbox of this version", step.name, got)
		}
	}
	s.must(t, "exec", id, "--", "touch", "/workspace/end")
	_ = follow.Wait()
	checkCounted(t, out.String())
	if code := follow.ProcessState.ExitCode(); code != 7 {
		t.Errorf("exit code %d, %s", code, problems.String())
	}
}
