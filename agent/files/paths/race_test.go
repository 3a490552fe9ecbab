package paths_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/files/paths"
)

// TestSwappedDirectoryNeverLeadsOutside lets an attacker swap a directory and a link to the outside as fast
// as it can, while everything is done beneath the directory's name.
func TestSwappedDirectoryNeverLeadsOutside(t *testing.T) {
	for mode, opts := range modes() {
		for _, virtual := range []bool{false, true} {
			name := mode
			if virtual {
				name += ", virtual"
			}
			t.Run(name, func(t *testing.T) { race(t, opts, virtual) })
		}
	}
}

func race(t *testing.T, opts paths.Options, virtual bool) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	root, outside := base+"/root", base+"/outside"
	must(t, os.MkdirAll(root+"/d/sub", 0o755))
	must(t, os.MkdirAll(outside+"/sub", 0o755))
	for _, f := range []string{"/f", "/sub/f"} {
		must(t, os.WriteFile(root+"/d"+f, []byte("inside"), 0o644))
		must(t, os.WriteFile(outside+f, []byte("secret"), 0o644))
	}
	must(t, os.Symlink(outside, root+"/l"))
	at := root
	if virtual {
		at = ""
		// Seen from the virtual root, the way out is relative.
		must(t, os.Remove(root+"/l"))
		must(t, os.Symlink("../outside", root+"/l"))
	}

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	enough := time.Now().Add(400 * time.Millisecond)
	var attack sync.WaitGroup
	var swaps atomic.Int64
	attack.Go(func() {
		for ctx.Err() == nil {
			if unix.Renameat2(unix.AT_FDCWD, root+"/d", unix.AT_FDCWD, root+"/l", unix.RENAME_EXCHANGE) != nil {
				t.Error("cannot swap")
				return
			}
			swaps.Add(1)
		}
	})
	defer attack.Wait()

	v := view(t, opts, paths.Policy{Root: root, Virtual: virtual})
	denied := view(t, opts, paths.Policy{ReadDeny: []string{outside}, WriteDeny: []string{outside}})
	inside, refused := 0, 0
	for ctx.Err() == nil {
		// Continue until each side has run.
		if time.Now().After(enough) && inside > 0 && refused > 0 && swaps.Load() > 0 {
			cancel()
		}
		for _, look := range []struct {
			view *paths.View
			path string
		}{{v, at + "/d/f"}, {v, at + "/d/sub/f"}, {denied, root + "/d/sub/f"}} {
			switch got := content(look.view, look.path, paths.Read); got {
			case "inside":
				inside++
			case "secret":
				t.Fatalf("%q led out", look.path)
			default:
				refused++
			}
		}
		for _, look := range []struct {
			view *paths.View
			path string
		}{{v, at + "/d/new/x/f"}, {denied, root + "/d/new/y/f"}} {
			loc, err := look.view.Locate(look.path, paths.Lookup{Access: paths.Write, Parents: true, Follow: true})
			if err != nil {
				refused++
				continue
			}
			fd, err := unix.Openat(loc.FD(), loc.Name, unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
			if err == nil {
				must(t, unix.Close(fd))
				_ = unix.Unlinkat(loc.FD(), loc.Name, 0)
			}
			must(t, loc.Close())
		}
	}
	attack.Wait()
	if _, err := os.Lstat(outside + "/new"); err == nil {
		t.Error("something was made outside")
	}
	if inside == 0 || refused == 0 || swaps.Load() == 0 {
		t.Errorf("no race: %d inside, %d refused, %d swaps", inside, refused, swaps.Load())
	}
}
