package providertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// goProgram returns a static build of conformance/goprogram for this machine, or
// nothing where there is no Go.
func goProgram(t *testing.T) []byte {
	t.Helper()
	program, err := builtGoProgram()
	if err != nil {
		t.Fatal(err)
	}
	return program
}

var builtGoProgram = sync.OnceValues(func() ([]byte, error) {
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
