package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/test/daemon"
)

// host is a server with two tenants, a and b.
type host struct {
	dir     string
	server  *daemon.Daemon
	tokens  map[string]string
	clients []*sandgate.Client
}

// start starts a server on a free port.
func start(ctx context.Context, program, cgroup string) (*host, error) {
	dir, err := os.MkdirTemp("", "sandgate-hostile-")
	if err != nil {
		return nil, err
	}
	h := &host{dir: dir}
	tokens := filepath.Join(dir, "tokens.yaml")
	if h.tokens, err = daemon.Tokens(ctx, program, tokens, "a", "b"); err != nil {
		return nil, err
	}
	h.server, err = daemon.Start(ctx, daemon.Options{Program: program, Args: []string{
		"--state-dir", filepath.Join(dir, "state"), "--local-cgroup", cgroup, "--tokens-file", tokens,
	}, Attr: &syscall.SysProcAttr{Setsid: true}}) // a service has a scheduling group of its own, as a session has
	return h, err
}

// client returns a client of a tenant.
func (h *host) client(ctx context.Context, tenant string) (*sandgate.Client, error) {
	client, err := sandgate.NewClient(ctx, sandgate.WithAddress(h.server.Address), sandgate.WithToken(h.tokens[tenant]))
	if err == nil {
		h.clients = append(h.clients, client)
	}
	return client, err
}

// sandbox creates a sandbox of a tenant.
func (h *host) sandbox(ctx context.Context, tenant string) (*sandgate.Sandbox, error) {
	client, err := h.client(ctx, tenant)
	if err != nil {
		return nil, err
	}
	box, _, err := client.Create(ctx, sandgate.CreateRequest{})
	return box, err
}

// stop deletes all sandboxes and stops the server.
func (h *host) stop() error {
	var errs []error
	ctx := context.Background()
	for tenant := range h.tokens {
		client, err := h.client(ctx, tenant)
		if err != nil {
			return err
		}
		for info, err := range client.List(ctx, sandgate.ListRequest{}) {
			if err != nil {
				errs = append(errs, err)
				break
			}
			errs = append(errs, client.Sandbox(info.GetSandboxId()).Delete(ctx))
		}
	}
	for _, client := range h.clients {
		errs = append(errs, client.Close())
	}
	return errors.Join(append(errs, h.server.Stop(), os.RemoveAll(h.dir))...)
}
