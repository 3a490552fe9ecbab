package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestListAndInfo(t *testing.T) {
	need(t)
	id := shared.create(t, "--label", "job=list", "--memory", "128MiB", "--ttl", "1h")
	if got := shared.must(t, "ls", "--quiet", "--label", "job=list"); got != id {
		t.Errorf("ls: %q", got)
	}
	if got := shared.must(t, "ls"); !strings.Contains(got, id) || !strings.Contains(got, "job=list") || !strings.Contains(got, "active") {
		t.Errorf("ls: %s", got)
	}
	if got := shared.must(t, "info", id); !strings.Contains(got, "128 MiB") {
		t.Errorf("info: %s", got)
	}
	if got := shared.must(t, "info"); !strings.Contains(got, "local") || !strings.Contains(got, "PROTECTION") {
		t.Errorf("info: %s", got)
	}
	var server struct {
		Provider    string
		Enforcement []struct {
			Name     string
			Enforced bool
		}
	}
	if err := json.Unmarshal([]byte(shared.must(t, "info", "--output", "json")), &server); err != nil || server.Provider != "local" || len(server.Enforcement) == 0 {
		t.Errorf("info as JSON: %+v, %v", server, err)
	}
}

func TestCreateAgain(t *testing.T) {
	need(t)
	id := shared.create(t, "again", "--env", "A=b")
	shared.must(t, "exec", id, "-c", "echo kept > /workspace/f")
	if got := shared.must(t, "create", "again", "--env", "A=b"); got != id {
		t.Errorf("got %q", got)
	}
	if got := shared.must(t, "exec", id, "-c", "cat /workspace/f; echo $A"); got != "kept\nb" {
		t.Errorf("got %q", got)
	}
	if got := shared.run("", "create", "again", "--env", "A=c"); got.code != 125 || !strings.Contains(got.stderr, "SANDBOX_SPEC_DIFFERS") {
		t.Errorf("another spec: %+v", got)
	}
}

func TestRemove(t *testing.T) {
	need(t)
	id := shared.create(t)
	if got := shared.must(t, "rm", id); got != id {
		t.Errorf("got %q", got)
	}
	if got := shared.run("", "rm", id); got.code != 125 || !strings.Contains(got.stderr, "SANDBOX_NOT_FOUND") {
		t.Errorf("again: %+v", got)
	}
	shared.must(t, "rm", "--force", id)
}

// Sandboxes and running commands survive the death of the server, and the caller of a
// running command does not notice it.
func TestRunningCommandsSurviveAKilledServer(t *testing.T) {
	need(t)
	s, err := serve(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	}()
	id := s.create(t)
	done := make(chan ran)
	go func() {
		done <- s.run("", "exec", id, "-c", counting)
	}()
	eventually(t, 30*time.Second, "the command runs", func() bool { return strings.Contains(s.run("", "ps", id).stdout, "running") })
	s.Kill()
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	s.must(t, "exec", id, "--", "touch", "/workspace/end")
	got := <-done
	if got.code != 7 || got.stderr != "" {
		t.Errorf("exit code %d, %s", got.code, got.stderr)
	}
	checkCounted(t, got.stdout)
	if got := s.must(t, "ls", "--quiet"); got != id {
		t.Errorf("ls after the restart: %q", got)
	}
}

// A copy that is in progress when the server is killed resumes where it broke, in both
// directions.
func TestCopyOverRestart(t *testing.T) {
	need(t)
	s, err := serve(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	}()
	id := s.create(t)
	const size = 200 << 20
	there, back := large(t, size), filepath.Join(t.TempDir(), "back")
	for _, sides := range [][2]string{{there, id + ":/workspace/f"}, {id + ":/workspace/f", back}} {
		killed := make(chan struct{})
		r := relayTo(t, s, size/3, func() { s.Kill(); close(killed) })
		done := make(chan ran, 1)
		go func() { done <- (&server{address: r.address()}).run("", "cp", sides[0], sides[1]) }()
		select {
		case got := <-done:
			t.Fatalf("over before it began: %+v", got)
		case <-killed:
		}
		if err := s.start(); err != nil {
			t.Fatal(err)
		}
		if got := <-done; got != (ran{}) {
			t.Errorf("%v: %+v", sides, got)
		}
	}
	if !bytes.Equal(sum(t, there), sum(t, back)) {
		t.Error("the file came back changed")
	}
}

// The same id of two tenants names two sandboxes, and neither tenant sees the other's.
func TestSameIDOfTwoTenantsIsTwoSandboxes(t *testing.T) {
	need(t)
	dir := t.TempDir()
	tokens := filepath.Join(dir, "tokens.yaml")
	entries := "tokens:\n"
	for _, tenant := range []string{"red", "blue"} {
		entries += fmt.Sprintf("  - {name: %s, tenant: %s, sha256: %x}\n", tenant, tenant, sha256.Sum256([]byte("sgt_"+tenant)))
	}
	if err := os.WriteFile(tokens, []byte(entries), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := serve(dir, "--tokens-file", tokens)
	if err != nil {
		t.Fatal(err)
	}
	as := func(tenant string, args ...string) ran {
		return s.run("", append([]string{"--token", "sgt_" + tenant}, args...)...)
	}
	defer func() {
		for _, tenant := range []string{"red", "blue"} {
			if got := as(tenant, "rm", "--all", "--yes"); got.code != 0 {
				t.Errorf("%s: %+v", tenant, got)
			}
		}
		s.Kill()
	}()
	for _, tenant := range []string{"red", "blue"} {
		if got := as(tenant, "create", "thread-1"); got.code != 0 {
			t.Fatalf("%s: %+v", tenant, got)
		}
		if got := as(tenant, "exec", "thread-1", "-c", "ls /workspace; echo "+tenant+" > /workspace/f"); got.code != 0 || got.stdout != "" {
			t.Errorf("%s: %+v", tenant, got)
		}
	}
	if got := as("red", "exec", "thread-1", "--", "cat", "/workspace/f"); got.stdout != "red\n" {
		t.Errorf("got %+v", got)
	}
	if got := as("red", "rm", "thread-1"); got.code != 0 {
		t.Errorf("got %+v", got)
	}
	if got := as("red", "exec", "thread-1", "--", "true"); !strings.Contains(got.stderr, "SANDBOX_NOT_FOUND") {
		t.Errorf("got %+v", got)
	}
	if got := as("blue", "ls", "--quiet"); got.stdout != "thread-1\n" {
		t.Errorf("got %+v", got)
	}
	for _, token := range []string{"green", ""} {
		if got := as(token, "ls"); got.code != 125 || !strings.Contains(got.stderr, "CREDENTIALS_INVALID") {
			t.Errorf("a wrong token: %+v", got)
		}
	}
}

// TestStreamOverOutages kills the server for ten seconds in the middle of 100 MiB of
// output. The output arrives complete.
func TestStreamOverOutages(t *testing.T) {
	need(t)
	const away = 10 * time.Second
	for _, way := range []string{"socket", "exec"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			s, err := serve(t.TempDir(), "--local-transport", way, "--local-cgroup", "/sandgate-e2e-"+way)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := s.stop(); err != nil {
					t.Error(err)
				}
			}()
			id, path := s.create(t), large(t, 100<<20)
			s.must(t, "cp", path, id+":/workspace/f")
			cmd := s.command(t.Context(), "exec", id, "--", "cat", "/workspace/f")
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			var said bytes.Buffer
			cmd.Stderr = &said
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			got := sha256.New()
			if _, err := io.CopyN(got, out, 20<<20); err != nil {
				t.Fatal(err, said.String())
			}
			s.Kill()
			time.Sleep(away) // the outage itself
			if err := s.start(); err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(got, out); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Error(err, said.String())
			}
			if !bytes.Equal(got.Sum(nil), sum(t, path)) {
				t.Error("the output is not the file")
			}
		})
	}
}
