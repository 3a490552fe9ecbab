package kubernetes

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/listen"
)

// serve runs a server in this process, and returns a client of it.
func serve(t *testing.T, config server.Config) *sandgate.Client {
	t.Helper()
	srv, err := server.New(config)
	if err != nil {
		t.Fatal(err)
	}
	address := "unix://" + filepath.Join(t.TempDir(), "s.sock")
	l, err := listen.Open(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	client, err := sandgate.NewClient(t.Context(), sandgate.WithAddress(address))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(client.Close(), srv.Shutdown(context.Background()), <-served); err != nil {
			t.Error(err)
		}
	})
	return client
}
