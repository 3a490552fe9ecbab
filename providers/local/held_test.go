//go:build linux

package local

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers/internal/directory"
)

// TestUseIsAskedUnderTheLock: no server can begin to use a directory between the
// question whether it is in use and its removal.
func TestUseIsAskedUnderTheLock(t *testing.T) {
	p, trees := treesOf(t, "unused")
	asked := false
	p.collect(t.Context(), p.layout.roots(), func(dir string) bool {
		asked = true
		if f, err := lockDir(dir, unix.LOCK_SH|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
			t.Errorf("another server gets it: %v, %v", f, err)
		}
		return false
	})
	if !asked || exists(trees("unused")) {
		t.Errorf("asked: %v", asked)
	}
}

// TestHoldMakesAgainWhatAnotherServerRemoves: a directory that is removed before it is
// locked is made again.
func TestHoldMakesAgainWhatAnotherServerRemoves(t *testing.T) {
	p, trees := treesOf(t)
	made := 0
	h, err := hold(func() ([]string, error) {
		dirs := []string{trees("a"), trees("b")}
		for _, dir := range dirs {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return nil, err
			}
		}
		if made++; made == 1 {
			p.collect(t.Context(), p.layout.roots(), func(dir string) bool { return dir == trees("a") })
		}
		return dirs, nil
	})
	if err != nil || made != 2 || len(h) != 2 {
		t.Fatalf("made %d times, %d held, %v", made, len(h), err)
	}
	defer closeHeld(t, h)
	p.collect(t.Context(), p.layout.roots(), func(string) bool { return false })
	if !exists(trees("a")) || !exists(trees("b")) {
		t.Error("a directory that is held is removed")
	}
	never, err := hold(func() ([]string, error) { return []string{trees("a"), trees("none")}, nil })
	if never != nil || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a directory that is never there: %v, %v", never, err)
	}
}

// TestDirectoryThatIsReplacedIsNotLocked: who waits for the lock of a directory that is
// removed meanwhile does not get that of the next one of its name.
func TestDirectoryThatIsReplacedIsNotLocked(t *testing.T) {
	_, trees := treesOf(t, "a")
	remover, err := lockDir(trees("a"), unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan error)
	go func() {
		f, err := lockDir(trees("a"), unix.LOCK_SH)
		if err == nil {
			err = errors.Join(errors.New("it is locked"), f.Close())
		}
		waited <- err
	}()
	awaitOpen(t, trees("a"), 2)
	if err := errors.Join(os.Rename(trees("a"), trees("away")), os.Mkdir(trees("a"), 0o700), remover.Close()); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// awaitOpen returns when the process has a directory open that often.
func awaitOpen(t *testing.T, dir string, want int) {
	t.Helper()
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	for open := 0; open < want; {
		files, err := filepath.Glob("/proc/self/fd/*")
		if err != nil {
			t.Fatal(err)
		}
		open = 0
		for _, f := range files {
			if of, err := os.Stat(f); err == nil && os.SameFile(info, of) {
				open++
			}
		}
	}
}

// treesOf is a provider whose state directory has trees, each with a file, and returns
// the path of each.
func treesOf(t *testing.T, names ...string) (p *Provider, path func(string) string) {
	t.Helper()
	p = &Provider{layout: layout{directory.Layout(t.TempDir())}, log: slog.New(slog.DiscardHandler)}
	if err := p.layout.make(); err != nil {
		t.Fatal(err)
	}
	path = func(name string) string { return filepath.Join(p.layout.roots(), name) }
	for _, name := range names {
		if err := errors.Join(os.MkdirAll(filepath.Join(path(name), "etc"), 0o755), os.WriteFile(filepath.Join(path(name), "etc", "hostname"), nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return p, path
}
