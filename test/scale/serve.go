//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// server is a running `sandgate serve`.
type server struct {
	process *exec.Cmd
	output  *bytes.Buffer
	client  *sandgate.Client
	// started is how long it took until it served.
	started time.Duration
}

func (c *cluster) serve(ctx context.Context, binary, provider, namespace, kubeconfig, config string) (*server, error) {
	dir, err := os.MkdirTemp(c.dir, "server-")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := l.Addr().String()
	l.Close()
	s := &server{output: new(bytes.Buffer)}
	args := []string{
		"serve", "--listen", address, "--provider", provider, "--state-dir", filepath.Join(dir, "state"), "--config", file,
		"--kubernetes-kubeconfig", kubeconfig, "--kubernetes-namespace", namespace,
	}
	if provider == "kubernetes" {
		args = append(args, "--kubernetes-image", c.image)
	}
	s.process = exec.Command(binary, args...)
	s.process.Stderr = s.output
	s.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	began := time.Now()
	if err := s.process.Start(); err != nil {
		return nil, fmt.Errorf("starting %s (run `make build` first): %w", binary, err)
	}
	if s.client, err = sandgate.NewClient(ctx, sandgate.WithAddress(address), sandgate.WithInsecure()); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	if err := wait(ctx, "the server", func() (bool, error) {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil, nil
	}); err != nil {
		return nil, errors.Join(err, s.stop(), errors.New(s.output.String()))
	}
	s.started = time.Since(began)
	return s, nil
}

func (s *server) stop() error {
	if s.client != nil {
		_ = s.client.Close()
	}
	_ = s.process.Process.Signal(syscall.SIGTERM)
	return s.process.Wait()
}

// memory returns what the kernel says of the process, in bytes.
func (s *server) memory(field string) int64 {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", s.process.Process.Pid))
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), field+":"); ok {
			n, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n << 10
		}
	}
	return 0
}

// cpu returns the processor time that the process has used.
func (s *server) cpu() time.Duration {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.process.Process.Pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond
}
