//go:build linux

package local

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// BundleCopy returns a bundle like a sandbox's that runs another program.
func BundleCopy(tb testing.TB, p *Provider, name string, args ...string) string {
	tb.Helper()
	data, err := os.ReadFile(p.layout.sandbox(name).config())
	if err != nil {
		tb.Fatal(err)
	}
	var s specs.Spec
	if err := json.Unmarshal(data, &s); err != nil {
		tb.Fatal(err)
	}
	s.Process.Args = args
	s.Linux.CgroupsPath += "-yardstick"
	dir := tb.TempDir()
	if err := writeJSON(filepath.Join(dir, "config.json"), &s); err != nil {
		tb.Fatal(err)
	}
	return dir
}

// KillInit ends a sandbox's first process, as a crash would.
func KillInit(p *Provider, name string) error {
	rec, err := readRecord(p.layout.sandbox(name))
	if err != nil {
		return err
	}
	return rec.Init.kill(context.Background())
}
