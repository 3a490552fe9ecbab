// Package escape runs attempts to break out of a sandbox from inside of it.
package escape

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// least is how many attempts there must be.
const least = 250

// Build builds the program that makes the attempts, for a test's duration.
func Build(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "attempts")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", path, "github.com/sandgate/sandgate/test/escape/attempts")
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the attempts: %v\n%s", err, out)
	}
	return path
}

// Run makes every attempt in the sandbox. Each must be refused with one of the
// errors that it names, or stand in allowed, by "family: name", with the reason
// why it is harmless there.
func Run(t testing.TB, box *sandgate.Sandbox, program string, allowed map[string]string) {
	t.Helper()
	ctx := context.Background()
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := box.UploadFile(ctx, sandgate.File{Path: "/workspace/attempts", Content: bytes.NewReader(content)}); err != nil {
		t.Fatal(err)
	}
	result, err := box.Execute(ctx, sandgate.ExecuteRequest{Shell: "chmod 700 attempts && exec ./attempts", Cwd: "/workspace"})
	if err != nil {
		t.Fatal(err)
	}
	lines, held := 0, 0
	decoder := json.NewDecoder(bytes.NewReader(result.Stdout))
	for decoder.More() {
		var o struct {
			Family, Name, Got string
			Want              []string
			Held              bool
		}
		if err := decoder.Decode(&o); err != nil {
			t.Fatalf("after %d attempts: %v", lines, err)
		}
		lines++
		name := o.Family + ": " + o.Name
		switch reason := allowed[name]; {
		case o.Held:
			held++
		case reason != "":
			t.Logf("%s: %s (%s)", name, o.Got, reason)
		default:
			t.Errorf("%s: got %s, want one of %v", name, o.Got, o.Want)
		}
	}
	t.Logf("%d attempts, %d refused as expected", lines, held)
	if lines < least || result.Exit.GetExitCode() != 0 {
		t.Errorf("%d attempts, at least %d are wanted; %v, %s", lines, least, result.Exit, result.Stderr)
	}
	// Whatever was tried, the sandbox works.
	if result, err := box.Execute(ctx, sandgate.ExecuteRequest{Shell: "echo works"}); err != nil || string(result.Stdout) != "works\n" {
		t.Errorf("afterwards: %q, %v", result.Stdout, err)
	}
}
