//go:build linux

package local_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/providers/providertest"
)

// TestEachSandboxHasAUserOfItsOwn: each sandbox has a user of its own, also one from a pool,
// also after a restart, and names it as any machine does.
func TestEachSandboxHasAUserOfItsOwn(t *testing.T) {
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) {
			config := testConfigOf(t, runtime)
			p := open(t, config)
			spec := providers.Spec{Hash: "h", Network: providers.NetworkNone, Resources: local.DefaultResources()}
			seen := map[string]string{}
			look := func(name string) string {
				t.Helper()
				got := providertest.Shell(t, p, name, `touch /workspace/f ~/g
					echo $(id -un) $(id -gn) $HOME $(echo ~sandbox) $(stat -c %U:%G /workspace /workspace/f ~/g /.sandgate/state)
					[ $(id -u) = $(id -g) ] && id -u`)
				const want = "sandbox sandbox /home/sandbox /home/sandbox sandbox:sandbox sandbox:sandbox sandbox:sandbox sandbox:sandbox\n"
				id, ok := strings.CutPrefix(got, want)
				if !ok || len(id) != len("2031616\n") {
					t.Errorf("%s: %q", name, got)
				}
				return strings.TrimSpace(id)
			}
			make := func(name string) {
				t.Helper()
				if _, err := providertest.Create(t.Context(), p, name, spec); err != nil {
					t.Fatal(err)
				}
				id := look(name)
				if other, ok := seen[id]; ok {
					t.Errorf("%s and %s are both user %s", name, other, id)
				}
				seen[id] = name
			}
			make("one")
			make("two")
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			p = open(t, config)
			make("three")
			for id, name := range seen {
				if got := look(name); got != id {
					t.Errorf("%s was user %s and is %s", name, id, got)
				}
				if _, err := os.Lstat("/run/sandgate/uids/" + id); err != nil {
					t.Error(err)
				}
				deleteSandbox(t, p, name)
				if owner, err := os.Readlink("/run/sandgate/uids/" + id); err == nil && filepath.Dir(owner) == config.StateDir {
					t.Errorf("user %s is still taken by %s", id, owner)
				}
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLimitsPerUserAreNotShared: a sandbox that uses up the kernel's limits per user leaves those
// of other sandboxes alone.
func TestLimitsPerUserAreNotShared(t *testing.T) {
	p := opened(t, testConfig(t))
	described, err := p.Describe(t.Context())
	if err != nil || !slices.ContainsFunc(described.Enforcement, func(e providers.Enforcement) bool { return e.Name == "kernel_limits" && e.Enforced }) {
		t.Errorf("it describes itself as %+v, %v", described, err)
	}
	createPlain(t, p, "greedy")
	createPlain(t, p, "modest")
	const take = `
import ctypes, os, sys
libc = ctypes.CDLL(None)
held = 0
while held < 100000 and libc.inotify_init1(0) >= 0: held += 1
print(held > 0, flush=True)
`
	greedy := make(chan string)
	release := filepath.Join("/workspace", "release")
	go func() {
		greedy <- providertest.Shell(t, p, "greedy", "python3 -c '"+take+`
import time
open("/workspace/taken", "w").close()
while not os.path.exists("`+release+`"): time.sleep(0.01)
'`)
	}()
	providertest.Shell(t, p, "greedy", "until test -e /workspace/taken; do sleep 0.01; done")
	if got := providertest.Shell(t, p, "modest", "python3 -c '"+take+"'"); got != "True\n" {
		t.Errorf("file watches of another sandbox: %q", got)
	}
	providertest.Shell(t, p, "greedy", "touch "+release)
	if got := <-greedy; got != "True\n" {
		t.Errorf("its own: %q", got)
	}
}

// TestUserIDsSurviveTheLossOfRun: the ids of running sandboxes are reclaimed when the content of
// /run is lost.
func TestUserIDsSurviveTheLossOfRun(t *testing.T) {
	config := testConfig(t)
	p := opened(t, config)
	createPlain(t, p, "one")
	claims := func() (mine []string) {
		t.Helper()
		entries, err := os.ReadDir("/run/sandgate/uids")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			path := filepath.Join("/run/sandgate/uids", e.Name())
			if owner, err := os.Readlink(path); err == nil && strings.HasPrefix(owner, config.StateDir+"/") {
				mine = append(mine, path)
			}
		}
		return mine
	}
	before := claims()
	if len(before) != 1 {
		t.Fatalf("claims %v", before)
	}
	if err := os.Remove(before[0]); err != nil {
		t.Fatal(err)
	}
	opened(t, config)
	if got := claims(); !slices.Equal(got, before) {
		t.Errorf("claims %v, want %v", got, before)
	}
}
