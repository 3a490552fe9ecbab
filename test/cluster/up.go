package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"
)

// up starts what does not run and returns when the cluster is ready for pods. It
// says on out what it does; nothing to do is silent.
func (c *cluster) up(ctx context.Context, out io.Writer) error {
	boot, err := bootID()
	if err != nil {
		return err
	}
	if c.exists() && c.state.Boot != boot {
		fmt.Fprintln(out, "cluster: the machine was started again; making a new cluster")
		if err := c.clear(ctx); err != nil {
			return err
		}
	}
	if !c.exists() {
		if err := c.initialise(); err != nil {
			return err
		}
	}
	if c.check(ctx) == nil {
		return nil
	}
	began := time.Now()
	if err := c.makePKI(); err != nil {
		return err
	}
	if err := c.writeFiles(); err != nil {
		return err
	}
	if err := errors.Join(c.makeCgroups(), c.makeBridge()); err != nil {
		return err
	}
	parts := map[string]component{}
	for _, component := range c.components() {
		parts[component.name] = component
	}
	group, starting := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := c.start(starting, parts["containerd"]); err != nil {
			return err
		}
		// Python's image may have to be made first, which nothing else waits for.
		group.Go(func() error { return c.loadImage(starting, pythonImage) })
		for _, image := range []string{pauseImage, busyboxImage} {
			if err := c.loadImage(starting, image); err != nil {
				return err
			}
		}
		return c.start(starting, parts["kubelet"])
	})
	group.Go(func() error {
		for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
			if err := c.start(starting, parts[name]); err != nil {
				return err
			}
		}
		if err := c.createObjects(starting); err != nil {
			return err
		}
		return c.start(starting, parts["agent-sandbox"])
	})
	if err := group.Wait(); err != nil {
		return err
	}
	if err := until(ctx, "the node", c.nodeReady); err != nil {
		return err
	}
	fmt.Fprintf(out, "cluster: ready in %.1f s; KUBECONFIG=%s\n", time.Since(began).Seconds(), c.path("kubeconfig"))
	return nil
}

// check reports the first reason why the cluster is not ready.
func (c *cluster) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for _, component := range c.components() {
		if component.optional {
			continue
		}
		if c.pid(component.name) == 0 {
			return fmt.Errorf("%s does not run", component.name)
		}
		if component.ready != nil {
			if err := component.ready(ctx); err != nil {
				return fmt.Errorf("%s: %w", component.name, err)
			}
		}
	}
	return c.nodeReady(ctx)
}
