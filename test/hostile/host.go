package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// host is a server with two tenants, a and b.
type host struct {
	dir, address string
	cmd          *exec.Cmd
	tokens       map[string]string
	clients      []*sandgate.Client
}

// start starts a server on a port of its own.
func start(ctx context.Context, program string) (*host, error) {
	dir, err := os.MkdirTemp("", "sandgate-hostile-")
	if err != nil {
		return nil, err
	}
	h := &host{dir: dir, tokens: map[string]string{}}
	var entries bytes.Buffer
	entries.WriteString("tokens:\n")
	for _, tenant := range []string{"a", "b"} {
		made := exec.CommandContext(ctx, program, "token", "new", "--name", tenant, "--tenant", tenant)
		var entry, token bytes.Buffer
		made.Stdout, made.Stderr = &token, &entry
		if err := made.Run(); err != nil {
			return nil, fmt.Errorf("token new: %w: %s", err, entry.String())
		}
		h.tokens[tenant] = strings.TrimSpace(token.String())
		_, line, _ := strings.Cut(entry.String(), "\n") // the first one says where it belongs
		entries.WriteString(line)
	}
	if err := os.WriteFile(filepath.Join(dir, "tokens.yaml"), entries.Bytes(), 0o600); err != nil {
		return nil, err
	}
	h.cmd = exec.CommandContext(ctx, program, "serve", "--listen", "127.0.0.1:0", "--state-dir", filepath.Join(dir, "state"),
		"--local-cgroup", "/sandgate-hostile", "--tokens-file", filepath.Join(dir, "tokens.yaml"))
	h.cmd.Cancel = func() error { return h.cmd.Process.Signal(syscall.SIGTERM) }
	said, err := h.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := h.cmd.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewReader(said)
	for h.address == "" {
		line, err := lines.ReadString('\n')
		if err != nil {
			return nil, fmt.Errorf("the server did not start: %w", err)
		}
		if _, rest, ok := strings.Cut(line, "serves at "); ok {
			h.address, _, _ = strings.Cut(strings.TrimSpace(rest), " ")
			h.address = strings.TrimRight(h.address, ",;")
		}
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	return h, nil
}

// client returns a client of a tenant.
func (h *host) client(ctx context.Context, tenant string) (*sandgate.Client, error) {
	client, err := sandgate.NewClient(ctx, sandgate.WithAddress(h.address), sandgate.WithToken(h.tokens[tenant]))
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

// memory is the resident size of the server.
func (h *host) memory() (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	var kib int64
	for line := range strings.Lines(string(status)) {
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			return kib << 10, nil
		}
	}
	return 0, errors.New("no VmRSS in the server's status")
}

// stop deletes what is left and ends the server.
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
	_ = h.cmd.Process.Signal(syscall.SIGTERM)
	return errors.Join(append(errs, h.cmd.Wait(), os.RemoveAll(h.dir))...)
}
