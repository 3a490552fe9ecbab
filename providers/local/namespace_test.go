//go:build linux

package local_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/providers/providertest"
)

// TestUserNamespaceWhereTheRuntimeHasIDMaps: with a runtime that has idmapped mounts, each
// sandbox without root has a user namespace, in which root is an id of its own, and else
// none has. Its user, its files and the owners of the system's are the same either way.
func TestUserNamespaceWhereTheRuntimeHasIDMaps(t *testing.T) {
	want := mapsMounts(t)
	image := "oci:" + writeLayout(t, busyboxImage(t))
	full := imageSpec(t, image, `"host_network": true`)
	full.Network = providers.NetworkFull
	plain := providers.Spec{Hash: "h", Network: providers.NetworkNone, Resources: local.DefaultResources()}
	unlimited := plain
	unlimited.Resources.DiskBytes = 0
	specs := map[string]providers.Spec{
		"plain": plain, "unlimited": unlimited, "image": imageSpec(t, image, ""), "writable": imageSpec(t, image, `"writable_root": true`), "network": full,
	}
	for _, transport := range []local.Transport{local.TransportSocket, local.TransportExec} {
		t.Run(string(transport), func(t *testing.T) {
			config := testConfig(t)
			config.Transport = transport
			p := open(t, config)
			roots := map[uint32]string{}
			for name, spec := range specs {
				if _, err := providertest.Create(t.Context(), p, name, spec); err != nil {
					t.Fatal(err)
				}
				root := assertNamespace(t, p, name, want)
				if other := roots[root]; other != "" && want {
					t.Errorf("root of %s is also that of %s", name, other)
				}
				roots[root] = name
			}
			closeProvider(t, p)
			p = open(t, config)
			for name := range specs {
				assertNamespace(t, p, name, want)
				deleteSandbox(t, p, name)
			}
			closeProvider(t, p)
		})
	}
}

// assertNamespace returns the host's id of root in a sandbox.
func assertNamespace(t *testing.T, p *local.Provider, name string, want bool) uint32 {
	t.Helper()
	pid := local.FirstProcess(t, p, name)
	host, err1 := os.Readlink("/proc/self/ns/user")
	inside, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", pid))
	if err1 != nil || err2 != nil || (inside != host) != want {
		t.Errorf("%s: user namespace %s, the host's is %s, %v, %v; its own: want %v", name, inside, host, err1, err2, want)
	}
	root := rootInside(t, pid)
	if (root != 0) != want {
		t.Errorf("%s: root inside is %d on the host", name, root)
	}
	got := providertest.Shell(t, p, name, `
		mkdir -p /workspace/made && echo x >/workspace/made/file && echo $(stat -c '%u:%g' /workspace/made/file)
		stat -c '%u %g' / /usr /usr/bin /etc/passwd /tmp /var/tmp /.sandgate /.sandgate/agent | sort -u
		(echo x >/etc/passwd; mkdir /new; : >/usr/new) 2>/dev/null
		grep -E '^(Uid|Gid|Groups|CapEff|CapBnd|NoNewPrivs):' /proc/self/status
		ulimit -n -H; ulimit -c -H; id -u`)
	lines := strings.Split(strings.TrimSpace(got), "\n")
	uid := lines[len(lines)-1]
	if want := fmt.Sprintf("%s:%[1]s\n0 0\nUid:\t%[1]s\t%[1]s\t%[1]s\t%[1]s\nGid:\t%[1]s\t%[1]s\t%[1]s\t%[1]s\nGroups:\t\nCapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nNoNewPrivs:\t1\n%[2]s\n0\n%[1]s\n", uid, hardLimit()); squeeze(got) != squeeze(want) {
		t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
	}
	// On the host they have the same owner, whose id is claimed.
	for _, path := range []string{"/workspace", "/workspace/made/file", "/run"} {
		info, err := os.Stat(fmt.Sprintf("/proc/%d/root%s", pid, path))
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); fmt.Sprint(st.Uid) != uid || fmt.Sprint(st.Gid) != uid {
			t.Errorf("%s: %s belongs to %d:%d on the host, and to %s inside", name, path, st.Uid, st.Gid, uid)
		}
	}
	if _, err := os.Readlink("/run/sandgate/uids/" + uid); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	return root
}

func squeeze(s string) string { return strings.Join(strings.Fields(s), " ") }

// TestDescriptionTellsOfUserNamespaces: the description tells whether sandboxes without
// root have a user namespace. Where none starts with one, they start without, and the
// description tells that.
func TestDescriptionTellsOfUserNamespaces(t *testing.T) {
	unprivileged := func(p *local.Provider) string {
		t.Helper()
		d, err := p.Describe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(d.Enforcement, func(e providers.Enforcement) bool { return e.Name == "unprivileged" && e.Enforced })
		if i < 0 {
			t.Fatalf("it describes itself as %+v", d)
		}
		return d.Enforcement[i].Detail
	}
	config := testConfig(t)
	want := "read-only system, a user namespace;"
	if !mapsMounts(t) {
		want = "no user namespace: the runtime has no idmapped mounts (runc 1.2 or later)"
	}
	p := opened(t, config)
	if got := unprivileged(p); !strings.Contains(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	// A runtime that reports idmapped mounts and starts nothing in a user namespace.
	runc, err := exec.LookPath("runc")
	if err != nil {
		t.Fatal(err)
	}
	config.Runtime = filepath.Join(t.TempDir(), "runc")
	script := fmt.Sprintf(`#!/bin/sh
last=
for arg; do
	[ "$arg" != features ] || { echo '{"linux":{"mountExtensions":{"idmap":{"enabled":true}}}}'; exit 0; }
	[ "$last" != --bundle ] || ! grep -q '/userns"' "$arg/config.json" || exit 1
	last=$arg
done
exec %s "$@"
`, runc)
	if err := os.WriteFile(config.Runtime, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	p = opened(t, config)
	if got, want := unprivileged(p), "no user namespace: no sandbox starts with one on this machine"; !strings.Contains(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	createPlain(t, p, "without")
	assertNamespace(t, p, "without", false)
}

// TestSandboxKeepsWhatItWasMadeWith: a sandbox without a user namespace works on when the
// runtime is a newer one that gives new sandboxes a namespace, and the other way round.
func TestSandboxKeepsWhatItWasMadeWith(t *testing.T) {
	if !mapsMounts(t) {
		testOtherRuntime(t, "runc", olderRuntime())
		return
	}
	t.Run("upgrade", func(t *testing.T) { testOtherRuntime(t, olderRuntime(), "runc") })
	t.Run("downgrade", func(t *testing.T) { testOtherRuntime(t, "runc", olderRuntime()) })
}

func testOtherRuntime(t *testing.T, before, after string) {
	for _, transport := range []local.Transport{local.TransportSocket, local.TransportExec} {
		t.Run(string(transport), func(t *testing.T) {
			config := testConfigOf(t, before)
			config.Transport = transport
			p := open(t, config)
			spec := providers.Spec{Hash: "h", Network: providers.NetworkNone, Resources: local.DefaultResources()}
			was := mapsMountsOf(t, before)
			if _, err := providertest.Create(t.Context(), p, "old", spec); err != nil {
				t.Fatal(err)
			}
			root := assertNamespace(t, p, "old", was)
			closeProvider(t, p)
			config.Runtime = after
			p = open(t, config)
			if again := assertNamespace(t, p, "old", was); again != root {
				t.Errorf("root inside was %d on the host and is %d", root, again)
			}
			if _, err := providertest.Create(t.Context(), p, "new", spec); err != nil {
				t.Fatal(err)
			}
			assertNamespace(t, p, "new", mapsMountsOf(t, after))
			for _, name := range []string{"old", "new"} {
				deleteSandbox(t, p, name)
			}
			closeProvider(t, p)
		})
	}
}

// olderRuntime is the last runc of PATH: behind one for tests, that of the distribution.
func olderRuntime() string {
	older := "runc"
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if path, err := exec.LookPath(filepath.Join(dir, "runc")); err == nil {
			older = path
		}
	}
	return older
}

func mapsMounts(t *testing.T) bool { return mapsMountsOf(t, "runc") }

// mapsMountsOf reports whether a runtime has idmapped mounts.
func mapsMountsOf(t *testing.T, runtime string) bool {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), runtime, "features").Output()
	if err != nil {
		t.Skipf("needs root and runc: %v", err)
	}
	var features struct {
		Linux struct {
			MountExtensions struct{ IDMap struct{ Enabled bool } }
		}
	}
	if err := json.Unmarshal(out, &features); err != nil {
		t.Fatal(err)
	}
	return features.Linux.MountExtensions.IDMap.Enabled
}

// rootInside returns the host's id of root in a process's user namespace.
func rootInside(t *testing.T, pid int) (id uint32) {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		var inside, host, size uint32
		if _, err := fmt.Sscan(line, &inside, &host, &size); err == nil && inside == 0 {
			return host
		}
	}
	t.Fatalf("no root among\n%s", data)
	return 0
}
