//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// house is a real server with its sandboxes, in a directory of its own.
type house struct {
	way, dir, address, cgroup string
	args                      []string
	tally                     *tally
	log                       *record
	direct                    *sandgate.Client

	mu        sync.Mutex
	server    *exec.Cmd
	sandboxes []*sandgate.Sandbox
}

// record keeps what the server says.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

// tail returns the last bytes of the record.
func (r *record) tail(n int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := r.text.Bytes()
	return string(text[max(0, len(text)-n):])
}

// binary is the program under test: SANDGATE_BIN, else bin/sandgate.
func binary() string {
	if path := os.Getenv("SANDGATE_BIN"); path != "" {
		return path
	}
	return "bin/sandgate"
}

// newHouse starts a server. Without an address it gets a port of its own.
func newHouse(ctx context.Context, way, address string, flags []string, t *tally) (_ *house, err error) {
	h := &house{way: way, tally: t, log: new(record), cgroup: fmt.Sprintf("/sandgate-chaos-%d-%s", os.Getpid(), way)}
	if h.dir, err = os.MkdirTemp("", "sandgate-chaos-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			h.kill()
			_ = os.RemoveAll(h.dir)
		}
	}()
	if h.address = address; address == "" {
		if h.address, err = freeAddress(); err != nil {
			return nil, err
		}
	}
	h.args = append([]string{
		"serve", "--listen", h.address, "--state-dir", filepath.Join(h.dir, "state"),
		"--local-transport", way, "--local-cgroup", h.cgroup,
	}, flags...)
	if err := h.start(ctx); err != nil {
		return nil, err
	}
	h.direct, err = sandgate.NewClient(ctx, sandgate.WithAddress(h.address))
	return h, err
}

// freeAddress returns a loopback address that was free a moment ago. Its port is
// below those that the system hands out: no client's own call takes it while the
// server is being restarted.
func freeAddress() (string, error) {
	for range 1000 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000)))
		if err != nil {
			continue
		}
		return l.Addr().String(), l.Close()
	}
	return "", errors.New("no port from 10000 to 29999 is free")
}

// start runs the server and waits until it answers.
func (h *house) start(ctx context.Context) error {
	cmd := exec.Command(binary(), h.args...)
	cmd.Stdout, cmd.Stderr = h.log, h.log
	// An interrupt is for this process, which still needs the server then.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s (make build makes it): %w", binary(), err)
	}
	h.mu.Lock()
	h.server = cmd
	h.mu.Unlock()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		conn, err := h.dial()
		if err == nil {
			return conn.Close()
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("the server does not serve: %w\n%s", err, h.log.tail(4000))
		}
	}
}

func (h *house) dial() (net.Conn, error) {
	if path, ok := strings.CutPrefix(h.address, "unix://"); ok {
		return net.Dial("unix", path)
	}
	return net.Dial("tcp", h.address)
}

// pid is the server's process.
func (h *house) pid() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.server.Process.Pid
}

// kill ends the server at once, if it runs.
func (h *house) kill() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.server == nil {
		return
	}
	_ = h.server.Process.Kill()
	_ = h.server.Wait()
}

// fill makes the sandboxes and puts the writer into each.
func (h *house) fill(ctx context.Context, n int, writer string) error {
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

// clear deletes the sandboxes, ends the server in order and removes its state.
// It returns what should not have been left.
func (h *house) clear() error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	var errs []error
	for _, s := range h.sandboxes {
		if err := s.Delete(ctx); err != nil {
			errs = append(errs, fmt.Errorf("delete %s: %w", s.ID(), err))
		}
	}
	errs = append(errs, h.leftovers()...)
	if h.direct != nil {
		_ = h.direct.Close()
	}
	_ = h.server.Process.Signal(syscall.SIGTERM)
	late := time.AfterFunc(2*time.Minute, func() { _ = h.server.Process.Kill() })
	if err := h.server.Wait(); err != nil {
		errs = append(errs, fmt.Errorf("the server's end after SIGTERM: %w", err))
	}
	late.Stop()
	return errors.Join(append(errs, os.RemoveAll(h.dir))...)
}
