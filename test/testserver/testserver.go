// Package testserver serves sandboxes of the fake provider from the process of a test.
package testserver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandgate/sandgate/providers/fake"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/listen"
)

// Machine returns a machine of the fake provider in a directory of its own, whose path is
// short enough for sockets. Both are gone after the test.
func Machine(t testing.TB) (machine *fake.Machine, dir string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "sg")
	if err != nil {
		t.Fatal(err)
	}
	machine = fake.NewMachine(dir, fake.Config{})
	t.Cleanup(func() {
		if err := errors.Join(machine.Close(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return machine, dir
}

// Serve serves on a unix socket in a directory until the test ends, and returns its
// address, as clients take it.
func Serve(t testing.TB, dir string, config server.Config) (address string, srv *server.Server) {
	t.Helper()
	srv, err := server.New(config)
	if err != nil {
		t.Fatal(err)
	}
	address = "unix://" + filepath.Join(dir, "server.sock")
	l, err := listen.Open(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := errors.Join(srv.Shutdown(ctx), <-served); err != nil {
			t.Error(err)
		}
	})
	return address, srv
}
