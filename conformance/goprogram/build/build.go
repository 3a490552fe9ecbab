// Package build builds conformance/goprogram for tests.
package build

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// GoProgram returns a static build of conformance/goprogram for this machine, made once
// per process, or nil where there is no Go: the cases that run it are then skipped.
func GoProgram(t testing.TB) []byte {
	t.Helper()
	program, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return program
}

var build = sync.OnceValues(func() ([]byte, error) {
	if _, err := exec.LookPath("go"); err != nil {
		return nil, nil
	}
	dir, err := os.MkdirTemp("", "sandgate-goprogram-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "goprogram")
	cmd := exec.Command("go", "build", "-trimpath", "-o", path, "github.com/sandgate/sandgate/conformance/goprogram")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build conformance/goprogram: %w: %s", err, out)
	}
	return os.ReadFile(path)
})
