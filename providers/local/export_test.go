//go:build linux

package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers/internal/atomicfile"
	"github.com/sandgate/sandgate/providers/internal/directory"
	"github.com/sandgate/sandgate/providers/local/oci"
)

// BundleCopy returns a bundle like a sandbox's that runs another program.
// Mounts of the sandbox alone are replaced by their lower layers.
func BundleCopy(tb testing.TB, p *Provider, name string, args ...string) string {
	tb.Helper()
	data, err := os.ReadFile(bundle(p.layout.Sandbox(name)).config())
	if err != nil {
		tb.Fatal(err)
	}
	var s specs.Spec
	if err := json.Unmarshal(data, &s); err != nil {
		tb.Fatal(err)
	}
	s.Process.Args = args
	s.Root.Path = p.host.Root
	for i, dir := range p.host.Shared {
		for j := range s.Mounts {
			if s.Mounts[j].Source == p.layout.mounts().shared(i) {
				s.Mounts[j].Source = dir.Source
			}
		}
	}
	s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.UserNamespace })
	s.Linux.UIDMappings, s.Linux.GIDMappings = nil, nil
	s.Linux.CgroupsPath += "-yardstick"
	dir := tb.TempDir()
	if err := atomicfile.WriteJSON(filepath.Join(dir, "config.json"), &s); err != nil {
		tb.Fatal(err)
	}
	return dir
}

// KillInit kills a sandbox's first process, as a crash would.
func KillInit(p *Provider, name string) error {
	rec, err := readRecord(p.layout.Sandbox(name))
	if err != nil {
		return err
	}
	return rec.Init.Kill(context.Background())
}

// FirstProcess returns the pid of a sandbox's first process.
func FirstProcess(tb testing.TB, p *Provider, name string) int {
	tb.Helper()
	rec, err := readRecord(p.layout.Sandbox(name))
	if err != nil {
		tb.Fatal(err)
	}
	return rec.Init.PID
}

// KillUnclaimed ends the first process of each unclaimed sandbox of a template.
func KillUnclaimed(tb testing.TB, p *Provider, template string) {
	tb.Helper()
	eachUnclaimed(tb, p, template, func(init oci.Process) error { return init.Kill(context.Background()) })
}

// FreezeUnclaimed stops the first process of each unclaimed sandbox of a
// template, and returns when all its threads have stopped.
func FreezeUnclaimed(tb testing.TB, p *Provider, template string) {
	tb.Helper()
	eachUnclaimed(tb, p, template, func(init oci.Process) error {
		if err := unix.Kill(init.PID, unix.SIGSTOP); err != nil {
			return err
		}
		for stopped := false; !stopped; time.Sleep(time.Millisecond) {
			threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", init.PID))
			if err != nil || len(threads) == 0 {
				return errors.Join(err, errors.New("it has no threads"))
			}
			stopped = true
			for _, thread := range threads {
				data, err := os.ReadFile(thread)
				if err != nil {
					continue // it has ended
				}
				if end := bytes.LastIndexByte(data, ')'); end < 0 || !bytes.HasPrefix(data[end+1:], []byte(" T ")) {
					stopped = false
				}
			}
		}
		return nil
	})
}

func eachUnclaimed(tb testing.TB, p *Provider, template string, do func(oci.Process) error) {
	tb.Helper()
	entries, err := os.ReadDir(p.layout.Pool())
	if err != nil {
		tb.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "pool."+template+".") {
			continue
		}
		rec, err := readRecord(p.layout.Pooled(e.Name()))
		if err == nil {
			err = do(rec.Init)
		}
		if err != nil {
			tb.Error(err)
		}
	}
}

// OfferInit makes a sandbox's first process the first choice of the OOM killer.
func OfferInit(p *Provider, name string) error {
	rec, err := readRecord(p.layout.Sandbox(name))
	if err != nil {
		return err
	}
	return os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", rec.Init.PID), []byte("1000"), 0)
}

// MoveState and MoveRuntime have Probe look elsewhere.
func MoveState(p *Provider, dir string)       { p.config.StateDir = dir }
func MoveRuntime(p *Provider, command string) { p.runtime.Path = command }

// UseNamespaces has new sandboxes get a user namespace, or none, whatever the runtime is.
func UseNamespaces(p *Provider, use bool) {
	reason := ""
	if !use {
		reason = noNamespaceByRuntime
	}
	p.noNamespace.Store(reason)
}

// DelegatedGroup is the cgroup in which a sandbox's commands may make others.
func DelegatedGroup(p *Provider, name string) string { return p.cgroups.V2Dir(name) }

// WithFault has fault called before each step of a creation, claim or removal.
func WithFault(c Config, fault func(ctx context.Context, step string) error) Config {
	c.fault = fault
	return c
}

// BeginDeletion leaves a sandbox as a server does that is killed right after it
// began to delete it, and ends its first process.
func BeginDeletion(tb testing.TB, p *Provider, name string) {
	tb.Helper()
	b := p.layout.Sandbox(name)
	rec, err := readRecord(b)
	if err != nil {
		tb.Fatal(err)
	}
	rec.Phase = directory.Deleting
	if err := directory.Write(b, rec); err != nil {
		tb.Fatal(err)
	}
}

// ChangeRecord rewrites a sandbox's record.
func ChangeRecord(tb testing.TB, p *Provider, name string, change func(record map[string]any)) {
	tb.Helper()
	path := p.layout.Sandbox(name).Record()
	data, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	fields := map[string]any{}
	if err := json.Unmarshal(data, &fields); err != nil {
		tb.Fatal(err)
	}
	change(fields)
	if err := atomicfile.WriteJSON(path, fields); err != nil {
		tb.Fatal(err)
	}
}

// BundleOf is a sandbox's directory.
func BundleOf(p *Provider, name string) string { return string(p.layout.Sandbox(name)) }

// LockOf is a sandbox's lock file.
func LockOf(p *Provider, name string) string { return filepath.Join(p.layout.Locks(), name) }

// CgroupPath is a sandbox's cgroup below the root of each hierarchy.
func CgroupPath(p *Provider, name string) string { return p.cgroups.Path(name) }

// SettleContainer settles a container as a starting server does whose list has it.
func SettleContainer(ctx context.Context, p *Provider, sandbox string) (directory.Outcome, error) {
	rec, err := readRecord(p.layout.Sandbox(sandbox))
	if err != nil {
		return directory.Busy, err
	}
	return p.settle(ctx, rec.Container)
}
