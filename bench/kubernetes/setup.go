package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// options are the command line.
type options struct {
	binary string
	image  string
	python string
	peers  string
	flags  []string
	scale  float64
}

// bench is a cluster, and the servers that were started on it.
type bench struct {
	options
	*cluster
	dir     string
	servers map[string]*server
}

func newBench(_ context.Context, o options) (*bench, error) {
	c, err := newCluster()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "sandgate-bench-kubernetes-")
	if err != nil {
		return nil, err
	}
	return &bench{options: o, cluster: c, dir: dir, servers: map[string]*server{}}, nil
}

// close is best effort: the figures are printed by now.
func (b *bench) close() {
	for _, s := range b.servers {
		s.stop()
	}
	b.cluster.close()
	_ = os.RemoveAll(b.dir)
}

// count scales a number of repetitions.
func (b *bench) count(n int) int { return max(3, int(float64(n)*b.scale)) }

// server is a running `sandgate serve` with a namespace of its own.
type server struct {
	namespace string
	address   string
	process   *exec.Cmd
	output    *bytes.Buffer
	client    *sandgate.Client
}

// serve returns the server of that name, started when it is first asked for.
func (b *bench) serve(ctx context.Context, name, namespace, config string, flags ...string) (*server, error) {
	if s := b.servers[name]; s != nil {
		return s, nil
	}
	dir := filepath.Join(b.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	s := &server{namespace: namespace, address: address, output: new(bytes.Buffer)}
	args := []string{
		"serve", "--listen", address, "--state-dir", filepath.Join(dir, "state"), "--config", file,
		"--kubernetes-kubeconfig", os.Getenv("KUBECONFIG"), "--kubernetes-namespace", namespace,
	}
	s.process = exec.Command(b.binary, append(append(args, flags...), b.flags...)...)
	s.process.Stderr = s.output
	// The server must not outlive a bench that is killed.
	s.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := s.process.Start(); err != nil {
		return nil, fmt.Errorf("starting %s (run `make build` first): %w", b.binary, err)
	}
	if s.client, err = sandgate.NewClient(ctx, sandgate.WithAddress(address), sandgate.WithInsecure()); err != nil {
		s.stop()
		return nil, err
	}
	err = wait(ctx, "the server", func() (bool, error) {
		_, err := s.client.ServerInfo(ctx)
		return err == nil, nil
	})
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("%w\n%s", err, s.output)
	}
	b.servers[name] = s
	return s, nil
}

func (s *server) stop() {
	if s.client != nil {
		_ = s.client.Close()
	}
	_ = s.process.Process.Signal(syscall.SIGTERM)
	_ = s.process.Wait()
}

// end stops a server whose rows are done, and frees the cluster of its pods.
func (b *bench) end(name string) {
	if s := b.servers[name]; s != nil {
		s.stop()
		delete(b.servers, name)
	}
}

// full waits until the server's pool is.
func (s *server) full(ctx context.Context) error {
	return wait(ctx, "Sandgate's pool", func() (bool, error) {
		status, err := s.client.PoolStatus(ctx, "")
		return status.GetAvailable() == status.GetTarget() && status.GetTarget() > 0, err
	})
}

// create makes a sandbox, which has to come from the pool. The returned function
// deletes it.
func (s *server) create(ctx context.Context, id string) (*sandgate.Sandbox, func(), error) {
	sandbox, _, err := s.client.Create(ctx, sandgate.CreateRequest{ID: id})
	if err != nil {
		return nil, nil, err
	}
	remove := func() {
		// The bench's own context may have ended; the sandbox must go anyway.
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), 30*time.Second, errors.New("deleting took over 30 s"))
		defer cancel()
		if err := sandbox.Delete(ctx); err != nil {
			fmt.Fprintf(os.Stderr, "bench-kubernetes: sandbox %s is left over: %v\n", id, err)
		}
	}
	if !sandbox.Created().GetFromPool() {
		remove()
		return nil, nil, fmt.Errorf("sandbox %s is not from the pool", id)
	}
	return sandbox, remove, nil
}

// execute runs `true` in a sandbox.
func execute(ctx context.Context, sandbox *sandgate.Sandbox) error {
	result, err := sandbox.Execute(ctx, sandgate.ExecuteRequest{Argv: []string{"true"}})
	if err != nil {
		return err
	}
	if result.Code() != 0 {
		return fmt.Errorf("true ended with %v", result.Exit)
	}
	return nil
}

// timed measures one call.
func timed(f func() error) (time.Duration, error) {
	began := time.Now()
	err := f()
	return time.Since(began), err
}

// freeAddress returns a loopback address that was free a moment ago.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
