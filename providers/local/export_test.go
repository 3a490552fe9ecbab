//go:build linux

package local

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
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

// KillUnclaimed ends the first process of each unclaimed sandbox of a template.
func KillUnclaimed(tb testing.TB, p *Provider, template string) {
	tb.Helper()
	eachUnclaimed(tb, p, template, func(init process) error { return init.kill(context.Background()) })
}

// FreezeUnclaimed stops the first process of each unclaimed sandbox of a
// template.
func FreezeUnclaimed(tb testing.TB, p *Provider, template string) {
	tb.Helper()
	eachUnclaimed(tb, p, template, func(init process) error { return unix.Kill(init.PID, unix.SIGSTOP) })
}

func eachUnclaimed(tb testing.TB, p *Provider, template string, do func(process) error) {
	tb.Helper()
	ids, err := p.pooled(template)
	if err != nil {
		tb.Fatal(err)
	}
	for _, id := range ids {
		rec, err := readRecord(p.layout.pooled(id))
		if err == nil {
			err = do(rec.Init)
		}
		if err != nil {
			tb.Error(err)
		}
	}
}

// OfferInit makes a sandbox's first process the one that the kernel ends first
// for want of memory.
func OfferInit(p *Provider, name string) error {
	rec, err := readRecord(p.layout.sandbox(name))
	if err != nil {
		return err
	}
	return os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", rec.Init.PID), []byte("1000"), 0)
}
