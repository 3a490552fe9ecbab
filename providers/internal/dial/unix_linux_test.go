package dial

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// The sandbox can put anything at the address of its agent. A link must not lead the
// server to a socket of the host.
func TestUnixFollowsNoLink(t *testing.T) {
	dir, host := t.TempDir(), filepath.Join(t.TempDir(), "host.sock")
	l, err := net.Listen("unix", host)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	at := filepath.Join(dir, "agent.sock")
	for what, plant := range map[string]func() error{
		"nothing":     func() error { return nil },
		"a link":      func() error { return os.Symlink(host, at) },
		"a pipe":      func() error { return unix.Mkfifo(at, 0o600) },
		"a directory": func() error { return os.Mkdir(at, 0o700) },
	} {
		if err := plant(); err != nil {
			t.Fatal(err)
		}
		conn, err := Unix(t.Context(), dir, "agent.sock")
		if err == nil {
			_ = conn.Close()
			t.Errorf("%s: a connection", what)
		}
		if what == "a link" && !errors.Is(err, errNotASocket) {
			t.Errorf("a link: %v", err)
		}
		if err := os.RemoveAll(at); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(host, at); err != nil {
		t.Fatal(err)
	}
	conn, err := Unix(t.Context(), dir, "agent.sock")
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}
