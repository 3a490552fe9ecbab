package listen

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	first, err := Open(t.Context(), "unix://"+path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", info, err)
	}
	if _, err := Open(t.Context(), "unix://"+path); err == nil {
		t.Fatal("a live server's socket was taken")
	}
	// A server that died leaves its socket behind.
	first.(*unixListener).Listener.Close()
	second, err := Open(t.Context(), "unix://"+path)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Fatal("the socket was left behind")
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), "unix://"+path); err == nil {
		t.Fatal("a file was taken for a socket")
	}
	if _, err := Open(t.Context(), "unix:relative"); err == nil {
		t.Fatal("a relative path was taken")
	}
}
