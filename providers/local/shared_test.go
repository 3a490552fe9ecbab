//go:build linux

package local_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/providers/providertest"
)

// countWatched prints how many events come within a second from the directory
// in which all programs lie.
const countWatched = `python3 -c '
import ctypes, os, select, time
libc = ctypes.CDLL(None)
fd = libc.inotify_init1(os.O_NONBLOCK)
assert fd >= 0 and libc.inotify_add_watch(fd, b"/usr/bin", 0x3f) >= 0
end, seen = time.monotonic() + 1, 0
while (left := end - time.monotonic()) > 0:
    if select.select([fd], [], [], left)[0]:
        seen += len(os.read(fd, 4096))
print(seen)
'`

// TestWatchesAndLocksOfSharedFiles: sandboxes see the same files of the host, but
// neither events nor locks of other sandboxes.
func TestWatchesAndLocksOfSharedFiles(t *testing.T) {
	p := opened(t, testConfig(t))
	createPlain(t, p, "watcher")
	createPlain(t, p, "watched")
	counted := make(chan string)
	go func() { counted <- providertest.Shell(t, p, "watcher", countWatched) }()
	for seen := ""; seen == ""; {
		select {
		case seen = <-counted:
			if seen != "0\n" {
				t.Errorf("it saw %s bytes of events of another sandbox", strings.TrimSpace(seen))
			}
		default:
			providertest.Shell(t, p, "watched", "/usr/bin/env true")
		}
	}
	f, err := os.Open("/usr/bin/env")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if got := providertest.Shell(t, p, "watched", "flock --nonblock --exclusive /usr/bin/env echo free || echo held"); got != "free\n" {
		t.Errorf("the host's lock is %q inside", got)
	}
}

// TestMountTableHidesTheStateDirectory: the mount table of a sandbox does not name the state directory.
func TestMountTableHidesTheStateDirectory(t *testing.T) {
	config := testConfig(t)
	p := opened(t, config)
	createPlain(t, p, "plain")
	if _, err := providertest.Create(t.Context(), p, "image", imageSpec(t, "oci:"+writeLayout(t, busyboxImage(t)), `"writable_root": true`)); err != nil {
		t.Fatal(err)
	}
	defer deleteSandbox(t, p, "image")
	for _, name := range []string{"plain", "image"} {
		if table := providertest.Shell(t, p, name, "cat /proc/self/mountinfo"); strings.Contains(table, filepath.Base(config.StateDir)) {
			t.Errorf("%s:\n%s", name, table)
		}
	}
}

// TestMountsBelowSharedDirectories: a sandbox sees mounts below the host's
// system directories.
func TestMountsBelowSharedDirectories(t *testing.T) {
	dir, err := os.MkdirTemp("/usr/share", "sandgate-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	if err := unix.Mount("none", dir, "tmpfs", 0, "mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("below"), 0o644); err != nil {
		t.Fatal(err)
	}
	p := opened(t, testConfig(t))
	createPlain(t, p, "plain")
	if got := providertest.Shell(t, p, "plain", "cat "+dir+"/file; touch "+dir+"/new 2>/dev/null || echo refused"); got != "belowrefused\n" {
		t.Errorf("got %q", got)
	}
}

// TestTreesOfSandboxesStay: sandboxes run on with the generated trees of an earlier
// state of the host, with an image or without, whichever servers start. Once a sandbox
// is deleted, the next start removes its tree.
func TestTreesOfSandboxesStay(t *testing.T) {
	config := testConfig(t)
	p := open(t, config)
	if _, err := providertest.Create(t.Context(), p, "plain", providers.Spec{Hash: "h", Network: providers.NetworkNone, Resources: local.DefaultResources()}); err != nil {
		t.Fatal(err)
	}
	if _, err := providertest.Create(t.Context(), p, "image", imageSpec(t, "oci:"+writeLayout(t, busyboxImage(t)), "")); err != nil {
		t.Fatal(err)
	}
	const look = "find / -xdev | sort; cat /etc/hostname /etc/services 2>/dev/null; true"
	before := map[string]string{"plain": providertest.Shell(t, p, "plain", look), "image": providertest.Shell(t, p, "image", look)}

	current := outdateTrees(t, config)
	used := map[string]string{}
	for name := range before {
		local.ChangeRecord(t, p, name, func(record map[string]any) {
			used[name] = fmt.Sprint("old-", record["tree"])
			record["tree"] = used[name]
		})
	}
	all := slices.Sorted(slices.Values(append([]string{used["plain"], used["image"]}, current...)))
	restarted := func(want []string) *local.Provider {
		t.Helper()
		p := open(t, config)
		if got := trees(t, config); !slices.Equal(got, want) {
			t.Errorf("trees %v, want %v", got, want)
		}
		return p
	}
	second := restarted(all)
	closeProvider(t, p)
	closeProvider(t, second)
	p = restarted(all)
	for name, want := range before {
		if got := providertest.Shell(t, p, name, look); got != want {
			t.Errorf("%s sees\n%s\nand saw\n%s", name, got, want)
		}
	}
	for _, name := range []string{"image", "plain"} {
		deleteSandbox(t, p, name)
		closeProvider(t, p)
		all = slices.DeleteFunc(all, func(tree string) bool { return tree == used[name] })
		p = restarted(all)
	}
	closeProvider(t, p)
}

// TestLinksInAnImageLeadNowhere: links in an image, in place of what the runtime mounts
// over or makes files in, lead nowhere.
func TestLinksInAnImageLeadNowhere(t *testing.T) {
	p := opened(t, testConfig(t))
	for _, point := range []string{
		"dev", "proc", "sys", "run", ".sandgate", "workspace", "home", "home/sandbox", "tmp", "var/tmp",
		"large_tool_results", "conversation_history", "etc/hosts", "etc/resolv.conf",
	} {
		for _, up := range []string{"", "../../../../../../../.."} {
			t.Run(point+" "+up, func(t *testing.T) {
				host := t.TempDir()
				for _, name := range []string{"canary", "ptmx"} {
					if err := os.WriteFile(filepath.Join(host, name), []byte("alive"), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				target := up + host
				if strings.HasPrefix(point, "etc/") {
					target += "/canary"
				}
				ref := "oci:" + writeLayout(t, withLayer(t, tar.Header{Name: point, Typeflag: tar.TypeSymlink, Linkname: target}))
				if _, err := providertest.Create(t.Context(), p, "links", imageSpec(t, ref, "")); err != nil {
					t.Fatal(err)
				}
				got := providertest.Shell(t, p, "links", "echo x >/dev/null && touch /tmp/a /workspace/b /home/sandbox/c && ls -d /proc/1 && test -d /"+filepath.Dir(point)+" && grep -c localhost /etc/hosts")
				if !strings.HasPrefix(got, "/proc/1\n") {
					t.Errorf("inside: %q", got)
				}
				deleteSandbox(t, p, "links")
				if files, err := os.ReadDir(host); err != nil || len(files) != 2 {
					t.Errorf("the host's directory now has %v, %v", files, err)
				}
				if data, err := os.ReadFile(filepath.Join(host, "canary")); err != nil || string(data) != "alive" {
					t.Errorf("the host's file is now %q, %v", data, err)
				}
			})
		}
	}
	for _, dir := range []string{"etc", "var"} {
		ref := "oci:" + writeLayout(t, withLayer(t, tar.Header{Name: dir, Typeflag: tar.TypeSymlink, Linkname: "/usr/" + dir}))
		if _, err := providertest.Create(t.Context(), p, "refused", imageSpec(t, ref, "")); err == nil || !strings.Contains(err.Error(), "/"+dir+" is not a directory") {
			t.Errorf("an image with a link at /%s: %v", dir, err)
		}
	}
}

// TestTreesOfServersStay: a server's generated trees stay while it runs, also without
// sandboxes.
func TestTreesOfServersStay(t *testing.T) {
	config := testConfig(t)
	p := open(t, config)
	current := outdateTrees(t, config)
	second := open(t, config)
	if got := trees(t, config); len(current) != 2 || len(got) != 4 {
		t.Errorf("trees %v beside a server with others", got)
	}
	closeProvider(t, p)
	closeProvider(t, second)
	opened(t, config)
	if got := trees(t, config); !slices.Equal(got, current) {
		t.Errorf("trees %v, want %v", got, current)
	}
}

// outdateTrees renames the generated trees, as if the host had changed since: those
// that a server makes now are others. It returns the names of these.
func outdateTrees(t *testing.T, config local.Config) (current []string) {
	t.Helper()
	current = trees(t, config)
	for _, tree := range current {
		dir := filepath.Join(config.StateDir, "rootfs", tree)
		if err := os.Rename(dir, filepath.Join(filepath.Dir(dir), "old-"+tree)); err != nil {
			t.Fatal(err)
		}
	}
	return current
}

// trees are the names of the generated trees in a state directory, in order.
func trees(t *testing.T, config local.Config) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(config.StateDir, "rootfs"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// withLayer is the usual test image with one more layer, of entries without data.
func withLayer(t *testing.T, headers ...tar.Header) v1.Image {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for i := range headers {
		if err := w.WriteHeader(&headers[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(out.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(busyboxImage(t), layer)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func createPlain(t *testing.T, p *local.Provider, name string) {
	t.Helper()
	spec := providers.Spec{Hash: "h", Network: providers.NetworkNone, Resources: local.DefaultResources()}
	if _, err := providertest.Create(t.Context(), p, name, spec); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deleteSandbox(t, p, name) })
}

func deleteSandbox(t *testing.T, p *local.Provider, name string) {
	t.Helper()
	if err := p.Delete(context.WithoutCancel(t.Context()), name, providers.Condition{}); err != nil {
		t.Error(err)
	}
}

// opened is open with a provider that is closed after the test's sandboxes are
// gone.
func opened(t *testing.T, config local.Config) *local.Provider {
	t.Helper()
	p := open(t, config)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}
