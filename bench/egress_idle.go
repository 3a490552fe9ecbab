package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/sandgate/sandgate/bench/report"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// egressIdle compares the anonymous memory of a server that holds idle sandboxes with the
// network mode PROXY with that of one without sandboxes.
func egressIdle(ctx context.Context, b *bench) ([]report.Figure, error) {
	const config = "templates:\n- name: default\n  network: proxy\n  egress:\n  - hosts: [\"*\"]\n"
	before, err := b.serverMemory(ctx, config, 0)
	if err != nil {
		return nil, err
	}
	names := make([]string, b.count(200))
	for i := range names {
		names[i] = fmt.Sprintf("bench-idle-%d", i)
	}
	small := &sandboxv1.SandboxSpec{Resources: &sandboxv1.Resources{MemoryBytes: 64 << 20, DiskBytes: 64 << 20}} // so that all fit
	removals := make([]func(), len(names))
	errs := make([]error, len(names))
	var creating sync.WaitGroup
	slots := make(chan struct{}, 4)
	for i, name := range names {
		creating.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			removals[i], errs[i] = b.sandboxWith(ctx, name, small)
		})
	}
	creating.Wait()
	defer func() {
		for _, remove := range removals {
			if remove != nil {
				remove()
			}
		}
		if err := b.serve(context.WithoutCancel(ctx)); err != nil {
			slog.Warn("the server does not start again", "error", err)
		}
	}()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	with, err := b.serverMemory(ctx, config, len(names))
	if err != nil {
		return nil, err
	}
	each := float64(with-before) / float64(len(names)) / 1024
	return []report.Figure{{
		What: fmt.Sprintf("%d idle sandboxes with PROXY, server memory each", len(names)), Ours: fmt.Sprintf("%.0f KiB", each),
		Ratio: each, Must: report.UpTo(100, "KiB"), Goal: report.UpTo(40, "KiB"),
		Note: fmt.Sprintf("the server has %d KiB with them and %d KiB without", with/1024, before/1024),
	}}, nil
}

// serverMemory starts the server several times and returns the median of its anonymous
// memory when it holds a number of sandboxes and has collected its garbage, as an idle
// server does every two minutes.
func (b *bench) serverMemory(ctx context.Context, config string, sandboxes int) (int64, error) {
	file := filepath.Join(b.dir, "config.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return 0, err
	}
	var all []int64
	for range 3 {
		admin, err := freeAddress()
		if err != nil {
			return 0, err
		}
		if err := b.serve(ctx, "--config", file, "--admin-listen", admin, "--pprof"); err != nil {
			return 0, err
		}
		if err := b.awaitSockets(ctx, sandboxes); err != nil {
			return 0, err
		}
		for range 2 { // pools keep what they have for one collection
			if err := collect(ctx, admin); err != nil {
				return 0, err
			}
		}
		// What was collected goes back to the machine in the background.
		select {
		case <-time.After(5 * time.Second):
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
		bytes, err := anonymousBytes(b.server.Process.Pid)
		if err != nil {
			return 0, err
		}
		all = append(all, bytes)
	}
	slices.Sort(all)
	return all[len(all)/2], nil
}

// collect has the server with this admin listener collect its garbage.
func collect(ctx context.Context, admin string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/debug/pprof/heap?gc=1", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("collect the server's garbage: %s", response.Status)
	}
	_, err = io.Copy(io.Discard, response.Body)
	return err
}

// awaitSockets waits until the server has a socket for each of these sandboxes.
func (b *bench) awaitSockets(ctx context.Context, sandboxes int) error {
	dir := fmt.Sprintf("/proc/%d/fd", b.server.Process.Pid)
	late := time.After(time.Minute)
	for {
		open, err := os.ReadDir(dir)
		if err != nil || len(open) >= sandboxes {
			return err
		}
		select {
		case <-late:
			return fmt.Errorf("the server holds %d descriptors after a minute, and there are %d sandboxes", len(open), sandboxes)
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
