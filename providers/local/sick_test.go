//go:build linux

package local_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/providers/providertest"
)

// TestServerStartsBesideASandboxWithBrokenParts breaks what one sandbox is made of in every way there is. A new
// server must start, serve the others, report that one FAILED with the reason,
// and remove it once the cause is gone.
func TestServerStartsBesideASandboxWithBrokenParts(t *testing.T) {
	for _, c := range []struct {
		name string
		harm func(t *testing.T, p *local.Provider, runtime string) (repair func())
		want string // in its message; empty: it is removed at once
	}{
		{"a frozen process", func(t *testing.T, p *local.Provider, _ string) func() {
			file := filepath.Join("/sys/fs/cgroup/freezer", local.CgroupPath(p, "sick"), "freezer.state")
			if _, err := os.Stat(file); err != nil {
				t.Skip("needs the freezer of cgroup v1, which holds back SIGKILL")
			}
			write(t, file, "FROZEN")
			for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
				state, err := os.ReadFile(file)
				if err != nil || time.Now().After(deadline) {
					t.Fatalf("it does not freeze: %s, %v", state, err)
				}
				if strings.TrimSpace(string(state)) == "FROZEN" {
					break
				}
			}
			return func() { write(t, file, "THAWED") }
		}, "cannot end its processes: timed out"},
		{"the runtime cannot delete it", func(t *testing.T, _ *local.Provider, runtime string) func() {
			write(t, runtime+".fail", "")
			return func() { remove(t, runtime+".fail") }
		}, "cannot delete its container"},
		{"the runtime hangs", func(t *testing.T, _ *local.Provider, runtime string) func() {
			write(t, runtime+".hang", "")
			return func() { remove(t, runtime+".hang") }
		}, "cannot delete its container: timed out"},
		{"a mount in its directory", func(t *testing.T, p *local.Provider, _ string) func() {
			dir := filepath.Join(local.BundleOf(p, "sick"), "mounted")
			if err := errors.Join(os.Mkdir(dir, 0o700), unix.Mount("none", dir, "tmpfs", 0, "")); err != nil {
				t.Fatal(err)
			}
			return func() {
				if err := unix.Unmount(dir, 0); err != nil {
					t.Error(err)
				}
			}
		}, "cannot delete its files: device or resource busy"},
		{"an immutable file", func(t *testing.T, p *local.Provider, _ string) func() {
			file := filepath.Join(local.BundleOf(p, "sick"), "immutable")
			write(t, file, "")
			if out, err := exec.CommandContext(t.Context(), "chattr", "+i", file).CombinedOutput(); err != nil {
				t.Skipf("needs a file system with immutable files: %v: %s", err, out)
			}
			return func() {
				if out, err := exec.CommandContext(t.Context(), "chattr", "-i", file).CombinedOutput(); err != nil {
					t.Errorf("%v: %s", err, out)
				}
			}
		}, "cannot delete its files: operation not permitted"},
		{"its runtime is not installed any more", func(t *testing.T, p *local.Provider, _ string) func() {
			var was any
			local.ChangeRecord(t, p, "sick", func(r map[string]any) { was, r["runtime"] = r["runtime"], "no-such-runtime" })
			return func() { local.ChangeRecord(t, p, "sick", func(r map[string]any) { r["runtime"] = was }) }
		}, "cannot find its runtime"},
		{"its lock is a directory", func(t *testing.T, p *local.Provider, _ string) func() {
			lock := local.LockOf(p, "sick")
			if err := errors.Join(os.Remove(lock), os.Mkdir(lock, 0o700)); err != nil {
				t.Fatal(err)
			}
			return func() { remove(t, lock) }
		}, "cannot read its state: is a directory"},
		{"its record is a directory", func(t *testing.T, p *local.Provider, _ string) func() {
			record := filepath.Join(local.BundleOf(p, "sick"), "record.json")
			if err := errors.Join(os.Rename(record, record+".old"), os.Mkdir(record, 0o700)); err != nil {
				t.Fatal(err)
			}
			return func() {
				if err := errors.Join(os.Remove(record), os.Rename(record+".old", record)); err != nil {
					t.Error(err)
				}
			}
		}, "cannot read its state: is a directory"},
		{"its record is empty", func(t *testing.T, p *local.Provider, _ string) func() {
			write(t, filepath.Join(local.BundleOf(p, "sick"), "record.json"), "")
			return func() {}
		}, ""},
		{"its record is gone", func(t *testing.T, p *local.Provider, _ string) func() {
			remove(t, filepath.Join(local.BundleOf(p, "sick"), "record.json"))
			return func() {}
		}, ""},
		{"its disk is gone", func(t *testing.T, p *local.Provider, _ string) func() {
			remove(t, filepath.Join(local.BundleOf(p, "sick"), "disk.ext4"))
			return func() {}
		}, ""},
		{"its bundle is gone", func(t *testing.T, p *local.Provider, _ string) func() {
			remove(t, filepath.Join(local.BundleOf(p, "sick"), "config.json"))
			return func() {}
		}, ""},
		{"it is a file", func(t *testing.T, p *local.Provider, _ string) func() {
			if err := p.Delete(t.Context(), "sick", providers.Condition{}); err != nil {
				t.Fatal(err)
			}
			write(t, local.BundleOf(p, "sick"), "")
			return func() { remove(t, local.BundleOf(p, "sick")) }
		}, "cannot read its state: not a directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := testConfig(t)
			config.Runtime = faultyRuntime(t)
			p := open(t, config)
			spec := providers.Spec{Hash: "h", Network: providers.NetworkNone, Resources: local.DefaultResources()}
			for _, name := range []string{"healthy", "sick"} {
				if _, err := providertest.Create(t.Context(), p, name, spec); err != nil {
					t.Fatal(err)
				}
			}
			local.BeginDeletion(t, p, "sick")
			repair := c.harm(t, p, config.Runtime)
			closeProvider(t, p)

			begin := time.Now()
			p = open(t, config)
			defer closeProvider(t, p)
			if took := time.Since(begin); took > 30*time.Second {
				t.Errorf("the start took %v", took)
			}
			if got := providertest.Shell(t, p, "healthy", "echo alive"); got != "alive\n" {
				t.Errorf("the healthy sandbox prints %q", got)
			}
			page, err := p.List(t.Context(), providers.Query{Limit: 10})
			if err != nil || len(page.Sandboxes) == 0 || page.Sandboxes[0].Name != "healthy" {
				t.Errorf("list: %+v, %v", page, err)
			}
			info, err := p.Get(t.Context(), "sick")
			switch {
			case c.want == "" && !errors.Is(err, providers.ErrNotFound):
				t.Errorf("it is %v: %s, %v; want it removed", info.State, info.Message, err)
			case c.want != "" && (err != nil || info.State != providers.StateFailed || !strings.Contains(info.Message, c.want)):
				t.Errorf("it is %v: %q, %v; want it failed with %q", info.State, info.Message, err, c.want)
			case strings.Contains(info.Message, config.StateDir):
				t.Errorf("the message names a path of the host: %q", info.Message)
			}
			repair()
			for deadline := time.Now().Add(time.Minute); !errors.Is(err, providers.ErrNotFound); time.Sleep(20 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("it is still %v: %s, %v", info.State, info.Message, err)
				}
				info, err = p.Get(t.Context(), "sick")
			}
			if _, err := providertest.Create(t.Context(), p, "sick", spec); err != nil {
				t.Errorf("the name cannot be used again: %v", err)
			}
			for _, name := range []string{"healthy", "sick"} {
				if err := p.Delete(t.Context(), name, providers.Condition{}); err != nil {
					t.Errorf("delete %s: %v", name, err)
				}
			}
		})
	}
}

// faultyRuntime is runc, but "delete" fails while the file with the suffix
// ".fail" exists, and hangs, ignoring SIGTERM, while ".hang" exists.
func faultyRuntime(t *testing.T) string {
	t.Helper()
	runc, err := exec.LookPath("runc")
	if err != nil {
		t.Skip("needs runc")
	}
	path := filepath.Join(t.TempDir(), "runc")
	script := fmt.Sprintf(`#!/bin/sh
case " $* " in *" delete "*"sick "*)
	[ -e "$0.fail" ] && { echo "no" >&2; exit 1; }
	while [ -e "$0.hang" ]; do sleep 0.05; done
esac
exec %s "$@"
`, runc)
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func write(t *testing.T, path, data string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Error(err)
	}
}
