//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/test/daemon"
	"github.com/sandgate/sandgate/test/footprint"
)

// host is a server with its sandboxes, in a directory of its own.
type host struct {
	transport, dir, address, cgroup string
	args                            []string
	tally                           *tally
	uses                            *footprint.Server
	log                             *daemon.Log
	direct                          *sandgate.Client

	mu        sync.Mutex
	server    *daemon.Daemon
	sandboxes []*sandgate.Sandbox
}

// newHost starts a server, without an address on a free port.
func newHost(ctx context.Context, transport, address string, flags []string, t *tally) (_ *host, err error) {
	h := &host{transport: transport, tally: t, log: new(daemon.Log), cgroup: fmt.Sprintf("/sandgate-chaos-%d-%s", os.Getpid(), transport)}
	if h.dir, err = os.MkdirTemp("", "sandgate-chaos-"); err != nil {
		return nil, err
	}
	h.uses = footprint.New(h.dir, h.cgroup)
	defer func() {
		if err != nil {
			h.kill()
			_ = os.RemoveAll(h.dir)
		}
	}()
	if h.address = address; address == "" {
		if h.address, err = daemon.FreeAddress(); err != nil {
			return nil, err
		}
	}
	h.args = append([]string{
		"--state-dir", filepath.Join(h.dir, "state"),
		"--local-transport", transport, "--local-cgroup", h.cgroup,
	}, flags...)
	if err := h.start(ctx); err != nil {
		return nil, err
	}
	h.direct, err = sandgate.NewClient(ctx, sandgate.WithAddress(h.address))
	return h, err
}

// start starts the server, again after it was killed.
func (h *host) start(ctx context.Context) error {
	server, err := daemon.Start(ctx, daemon.Options{
		Listen: h.address, Args: h.args, Log: h.log,
		// An interrupt is for this process, which still needs the server then.
		Attr: &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.server = server
	return nil
}

// pid returns the server's process id.
func (h *host) pid() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.server.Process.Pid
}

// kill kills the server, if it runs.
func (h *host) kill() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.server != nil {
		h.server.Kill()
	}
}

// fill creates the sandboxes and uploads the writer to each.
func (h *host) fill(ctx context.Context, n int, writer string) error {
	for range n {
		s, _, err := h.direct.Create(ctx, sandgate.CreateRequest{})
		if err != nil {
			return fmt.Errorf("create a sandbox: %w", err)
		}
		h.sandboxes = append(h.sandboxes, s)
		f, err := os.Open(writer)
		if err != nil {
			return err
		}
		mode := uint32(0o755)
		result, err := s.UploadFile(ctx, sandgate.File{Path: writerPath, Content: f, Mode: &mode})
		err = errors.Join(err, result.Err, f.Close())
		if err != nil {
			return fmt.Errorf("upload the writer: %w", err)
		}
	}
	return nil
}

// clear deletes the sandboxes, stops the server and removes its state. It returns
// everything that is left behind.
func (h *host) clear() error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	var errs []error
	h.uses.Loops() // so that Left knows them
	for _, s := range h.sandboxes {
		if err := s.Delete(ctx); err != nil {
			errs = append(errs, fmt.Errorf("delete %s: %w", s.ID(), err))
		}
	}
	errs = append(errs, h.uses.Left()...)
	if h.direct != nil {
		_ = h.direct.Close()
	}
	if err := h.server.Stop(); err != nil {
		errs = append(errs, fmt.Errorf("the server's end after SIGTERM: %w", err))
	}
	return errors.Join(append(errs, os.RemoveAll(h.dir))...)
}
