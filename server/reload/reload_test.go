package reload

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func parse(contents [][]byte) (string, error) {
	text := string(bytes.Join(contents, []byte("|")))
	if strings.Contains(text, "bad") {
		return "", errors.New("bad content")
	}
	return text, nil
}

// again makes the next Get look at the files.
func again[T any](f *Files[T]) T {
	f.checked.Store(new(time.Time))
	return f.Get()
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	write(t, a, "1")
	write(t, b, "2")
	var log bytes.Buffer
	f, err := Open(slog.New(slog.NewTextHandler(&log, nil)), parse, a, b)
	if err != nil {
		t.Fatal(err)
	}
	want := func(want string, lines int) {
		t.Helper()
		if got := again(f); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if n := strings.Count(log.String(), "\n"); n != lines {
			t.Errorf("%d lines in the log, want %d:\n%s", n, lines, &log)
		}
	}
	want("1|2", 0)
	// The same size and time as before.
	info, err := os.Stat(b)
	if err != nil {
		t.Fatal(err)
	}
	write(t, b, "3")
	if err := os.Chtimes(b, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	want("1|3", 0)
	write(t, a, "bad")
	want("1|3", 1)
	want("1|3", 1)
	if err := os.Remove(a); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		want("1|3", 2)
	}
	write(t, a, "4")
	want("4|3", 3)
}

func TestOpenFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	if _, err := Open(nil, parse, path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	write(t, path, "bad")
	if _, err := Open(nil, parse, path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
}

// A read that fails once does not hide a change.
func TestFailedReadIsTriedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	write(t, path, "1")
	f, err := Open(slog.New(slog.DiscardHandler), parse, path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, "2")
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	got := again(f)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if got != "1" {
		t.Fatalf("got %q without descriptors", got)
	}
	if got := again(f); got != "2" {
		t.Fatalf("got %q afterwards", got)
	}
}

func TestConcurrentGet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	write(t, path, "0")
	f, err := Open(slog.New(slog.DiscardHandler), parse, path)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				if again(f) == "" {
					t.Error("no value")
				}
			}
		})
	}
	for i := range 20 {
		tmp := path + "~"
		write(t, tmp, fmt.Sprint(i+1))
		if err := os.Rename(tmp, path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	wg.Wait()
	if got := again(f); got != "20" {
		t.Errorf("got %q", got)
	}
}
