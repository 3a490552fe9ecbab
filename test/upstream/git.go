package upstream

import (
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"testing"
)

// Repository returns a directory with a repository, repo.git, and its checkout, site. A
// file in it has the text "content".
func Repository(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	const script = `set -e; cd "$1"; export HOME=$1 GIT_CONFIG_NOSYSTEM=1; git init -q -b main site; echo content >site/file
git -C site add file; git -C site -c user.name=n -c user.email=n@example.com commit -q -m first
git clone -q --bare site repo.git; git -C repo.git update-server-info`
	if out, err := exec.Command("/bin/sh", "-c", script, "sh", root).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return root
}

// Site serves a file, and a git repository, by HTTPS. It returns the site and its
// certificate as PEM.
func Site(t testing.TB) (*httptest.Server, string) {
	t.Helper()
	root := Repository(t)
	s := httptest.NewTLSServer(http.FileServer(http.Dir(root)))
	t.Cleanup(s.Close)
	return s, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

// ServeGit serves the repositories of a directory by git's own protocol.
func ServeGit(t testing.TB, root string) string {
	t.Helper()
	return Accept(t, "tcp4", "127.0.0.1:0", func(conn net.Conn) {
		file, err := conn.(*net.TCPConn).File()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = file.Close() }()
		daemon := exec.Command("git", "daemon", "--inetd", "--export-all", "--base-path="+root)
		daemon.Stdin, daemon.Stdout = file, file
		_ = daemon.Run() // the client of the other end judges
	})
}

// Accept listens until the test ends, and returns the address. Each connection is closed
// when serve returns.
func Accept(t testing.TB, network, address string, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				serve(conn)
			}()
		}
	}()
	return l.Addr().String()
}
