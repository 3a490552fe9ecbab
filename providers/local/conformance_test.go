//go:build linux

package local_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/providers/providertest"
)

func TestMain(m *testing.M) {
	if raw := os.Getenv(victimConfig); raw != "" {
		fmt.Fprintln(os.Stderr, beVictim(raw))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if built.dir != "" {
			_ = os.RemoveAll(built.dir)
		}
		os.Exit(code)
	}))
}

// TestConformance runs the suite for both profiles and both ways in, and with
// gVisor. The restricted profile with exec is what a restricted pod on Kubernetes
// offers.
func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name      string
		runtime   string
		profile   local.Profile
		transport local.Transport
		except    map[string]string
	}{
		{"socket", "runc", local.ProfileDefault, local.TransportSocket, nil},
		{"exec", "runc", local.ProfileDefault, local.TransportExec, nil},
		{"restricted", "runc", local.ProfileRestricted, local.TransportExec, nil},
		{"runsc", "runsc", local.ProfileDefault, local.TransportExec, map[string]string{
			"C24_memory_hog": "it ends the whole sandbox, which TestSandboxReportsThatItsAgentRanOutOfMemory and the suite over a server see",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := testConfigOf(t, c.runtime)
			config.Profile, config.Transport = c.profile, c.transport
			assertReaped(t)
			providertest.Run(t, providertest.Harness{
				Open: func(t *testing.T) providers.Provider { return open(t, config) },
				Spec: func() providers.Spec {
					return providers.Spec{Network: providers.NetworkNone, Resources: local.DefaultResources()}
				},
				Except: c.except,
			})
		})
	}
}

// testConfig is a configuration with a state directory of its own. When the test
// ends, nothing may be left of it on this machine.
func testConfig(t *testing.T) local.Config {
	t.Helper()
	return testConfigOf(t, "runc")
}

func testConfigOf(t *testing.T, runtime string) local.Config {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skipf("needs root and %s: not root", runtime)
	}
	if _, err := exec.LookPath(runtime); err != nil {
		t.Skipf("needs root and %s: no %s", runtime, runtime)
	}
	dir, err := os.MkdirTemp("", "sandgate-local-")
	if err != nil {
		t.Fatal(err)
	}
	config := local.Config{
		Runtime: runtime, StateDir: dir, Agent: agentAt(agentFile(t)), CgroupParent: "/" + filepath.Base(dir),
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	t.Cleanup(func() {
		assertNothingLeft(t, dir, config.CgroupParent)
		sweep(t, config)
	})
	return config
}

// sweep deletes sandboxes that a failed test has left, and the state directory.
func sweep(t testing.TB, config local.Config) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	config.Logger = slog.New(slog.DiscardHandler)
	p, err := local.New(ctx, config)
	if err != nil {
		t.Error(err)
		return
	}
	page, err := p.List(ctx, providers.Query{Limit: 1000})
	if err != nil {
		t.Error(err)
	}
	for _, info := range page.Sandboxes {
		if err := p.Delete(ctx, info.Name, providers.Condition{}); err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(p.Close(), os.RemoveAll(config.StateDir)); err != nil {
		t.Error(err)
	}
}

func open(t *testing.T, config local.Config) *local.Provider {
	t.Helper()
	p, err := local.New(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

var built struct {
	once sync.Once
	dir  string
	err  error
}

// agentAt returns a source of an agent in a file.
func agentAt(path string) func(string) ([]byte, error) {
	return func(string) ([]byte, error) { return os.ReadFile(path) }
}

// agentFile builds the agent once.
func agentFile(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("SANDGATE_TEST_AGENT"); path != "" {
		return path
	}
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "sandgate-agent-"); built.err != nil {
			return
		}
		cmd := exec.CommandContext(context.Background(), "go", "build", "-o", filepath.Join(built.dir, "sandgate-agent"), "github.com/sandgate/sandgate/cmd/sandgate-agent")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("build the agent: %w: %s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, "sandgate-agent")
}

// assertNothingLeft fails the test for every part of a sandbox that is left on
// the machine.
func assertNothingLeft(t *testing.T, dir, cgroupParent string) {
	t.Helper()
	for _, sub := range []string{"sandboxes", "pool", "locks", "runtime/runc", "runtime/runsc"} {
		entries, err := os.ReadDir(filepath.Join(dir, sub))
		if err != nil && !os.IsNotExist(err) {
			t.Error(err)
		}
		for _, e := range entries {
			// gVisor makes this file once, whatever it runs.
			if e.Name() != "null-netns" {
				t.Errorf("left behind: %s/%s", sub, e.Name())
			}
		}
	}
	users, _ := filepath.Glob("/run/sandgate/uids/*")
	for _, user := range users {
		if owner, err := os.Readlink(user); err == nil && filepath.Dir(owner) == dir {
			t.Errorf("left behind: %s of %s", user, owner)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir) {
			t.Errorf("left behind: mount %s", line)
		}
	}
	backing, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range backing {
		dev := filepath.Join("/dev", filepath.Base(filepath.Dir(filepath.Dir(file))))
		if name := loopName(dev); strings.HasPrefix(name, dir) {
			t.Errorf("left behind: %s has %s", dev, name)
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		groups, _ := filepath.Glob(pattern + cgroupParent)
		for _, g := range groups {
			t.Errorf("left behind: cgroup %s", g)
		}
	}
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range lines {
		if data, err := os.ReadFile(file); err == nil && bytes.Contains(data, []byte(dir)) {
			t.Errorf("left behind: process %s: %q", file, data)
		}
	}
}

// loopName returns the path that a loop device was attached with, as far as the
// kernel keeps it. Only root can ask for it.
func loopName(dev string) string {
	f, err := os.Open(dev)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	if err != nil {
		return ""
	}
	name, _, _ := bytes.Cut(info.File_name[:], []byte{0})
	return string(name)
}

// assertReaped wants no child of this process to be a zombie at the end of a test
// that was not one at its beginning.
func assertReaped(t *testing.T) {
	t.Helper()
	before := zombies()
	t.Cleanup(func() {
		for _, pid := range zombies() {
			if !slices.Contains(before, pid) {
				t.Errorf("left behind: process %s is a zombie", pid)
			}
		}
	})
}

// zombies lists the children of this process that have ended.
func zombies() []string {
	var out []string
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		rest := data[bytes.LastIndexByte(data, ')')+1:]
		if bytes.HasPrefix(rest, fmt.Appendf(nil, " Z %d ", os.Getpid())) {
			out = append(out, filepath.Base(filepath.Dir(file)))
		}
	}
	return out
}
