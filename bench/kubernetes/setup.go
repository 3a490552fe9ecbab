package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandgate/sandgate/bench/cluster"
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
	*cluster.Cluster
	dir     string
	servers map[string]*server
	// plain is the namespace of each blueprint's plain pool.
	plain map[string]string
}

func newBench(o options) (*bench, error) {
	c, err := cluster.Connect("bench-")
	if err != nil {
		return nil, fmt.Errorf("%w: run make bench-kubernetes", err)
	}
	dir, err := os.MkdirTemp("", "sandgate-bench-kubernetes-")
	if err != nil {
		return nil, err
	}
	return &bench{options: o, Cluster: c, dir: dir, servers: map[string]*server{}, plain: map[string]string{}}, nil
}

// close is best effort: the figures are printed by now.
func (b *bench) close() {
	b.clear()
	for _, namespace := range b.Namespaces {
		b.remove(namespace)
	}
	_ = os.RemoveAll(b.dir)
}

// count scales a number of repetitions.
func (b *bench) count(n int) int { return max(3, int(float64(n)*b.scale)) }

// server is a running `sandgate serve` with a namespace of its own.
type server struct{ *cluster.Server }

// serve starts the server of that name.
func (b *bench) serve(ctx context.Context, name, provider string, by transport, namespace, config string, flags ...string) (*server, error) {
	dir, err := os.MkdirTemp(b.dir, "server-")
	if err != nil {
		return nil, err
	}
	started, err := cluster.Serve(ctx, cluster.Order{
		Binary: b.binary, Directory: dir, Kubeconfig: os.Getenv("KUBECONFIG"),
		Provider: provider, Namespace: namespace, Config: config,
		Flags: slices.Concat([]string{"--kubernetes-transport", string(by)}, flags, b.flags),
	})
	if err != nil {
		return nil, err
	}
	s := &server{started}
	b.servers[name] = s
	return s, nil
}

// keep ends the servers but those of these names, and frees the cluster of their
// pods.
func (b *bench) keep(names ...string) {
	for name, s := range b.servers {
		if !slices.Contains(names, name) {
			_ = s.Stop()
			delete(b.servers, name)
			b.remove(s.Namespace)
		}
	}
}

// clear ends all servers and plain pools.
func (b *bench) clear() {
	b.keep()
	for name, namespace := range b.plain {
		delete(b.plain, name)
		b.remove(namespace)
	}
}

// remove deletes a namespace that was made, without waiting for its end. Pods of
// a bench have nothing to finish.
func (b *bench) remove(namespace string) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), 30*time.Second, errors.New("deleting took over 30 s"))
	defer cancel()
	none := int64(0)
	err := errors.Join(
		b.Client.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}),
		b.Client.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &none}, metav1.ListOptions{}),
	)
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench-kubernetes: namespace %s is left over: %v\n", namespace, err)
	}
	b.Namespaces = slices.DeleteFunc(slices.Clone(b.Namespaces), func(n string) bool { return n == namespace })
}

// full waits until the server's pool is.
func (s *server) full(ctx context.Context) error {
	return cluster.Wait(ctx, "Sandgate's pool", func() (bool, error) {
		status, err := s.Client.PoolStatus(ctx, "")
		return status.GetAvailable() == status.GetTarget() && status.GetTarget() > 0, err
	})
}

// create makes a sandbox, which has to come from the pool. The returned function
// deletes it.
func (s *server) create(ctx context.Context, id string) (*sandgate.Sandbox, func(), error) {
	sandbox, _, err := s.Client.Create(ctx, sandgate.CreateRequest{ID: id})
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
