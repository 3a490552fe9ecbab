package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/sandgate/sandgate/bench/report"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// dockerRows compares a server of the docker provider with the docker program on the
// same daemon, that of DOCKER_HOST. SANDGATE_DOCKER_IMAGE names the image of both.
func dockerRows(ctx context.Context, outer *bench) ([]report.Figure, error) {
	if _, err := docker(ctx, "version"); err != nil {
		return []report.Figure{{What: "docker", Ours: "skipped", Note: "no Docker daemon answers at DOCKER_HOST, so the rows for docker were skipped"}}, nil
	}
	image := os.Getenv("SANDGATE_DOCKER_IMAGE")
	if image == "" {
		image = "docker.io/library/python:3.12-slim"
	}
	b, err := newBench(ctx, outer.binary, []string{"--provider", "docker", "--docker-image", image}, outer.scale)
	if err != nil {
		return nil, err
	}
	defer b.close()
	execute, err := dockerExecute(ctx, b)
	if err != nil {
		return nil, err
	}
	cold, run, err := dockerCreations(ctx, b, image, "default", nil)
	if err != nil {
		return nil, err
	}
	if err := b.serveConfig(ctx, poolConfig); err != nil {
		return nil, err
	}
	pooled, runAgain, err := dockerCreations(ctx, b, image, "ready", func() error { return b.full(ctx, "ready") })
	// The next server deletes the unclaimed sandboxes.
	if err := errors.Join(err, b.serve(ctx)); err != nil {
		return nil, err
	}
	return []report.Figure{
		execute,
		report.Latency("docker: create → first command, cold | docker run", cold, run, 0.5, report.AtMost(1.3), report.Bound{}),
		report.Latency("docker: create → first command, from pool | docker run", pooled, runAgain, 0.5, report.Part(4), report.Bound{}),
	}, nil
}

// dockerExecute measures both in turns, in the same container.
func dockerExecute(ctx context.Context, b *bench) (report.Figure, error) {
	const id = "bench-docker"
	remove, err := b.sandbox(ctx, id)
	if err != nil {
		return report.Figure{}, err
	}
	defer remove()
	got, err := b.client.GetSandbox(ctx, &sandboxv1.GetSandboxRequest{SandboxId: id})
	if err != nil {
		return report.Figure{}, err
	}
	// An exec leaves the daemon something to clean up, which slows the next call,
	// whoever's that is; in a turn of several, the median does not show it.
	const turn = 10
	var ours, theirs report.Samples
	n := b.count(100)
	for i := 0; i < n+turn; i += turn {
		for range turn {
			start := time.Now()
			if err := complete(ctx, b, id, "true"); err != nil {
				return report.Figure{}, err
			}
			ours = append(ours, time.Since(start))
		}
		for range turn {
			took, err := docker(ctx, "exec", got.GetSandbox().GetSubstrateName(), "true")
			if err != nil {
				return report.Figure{}, err
			}
			theirs = append(theirs, took)
		}
	}
	ours, theirs = ours[turn:], theirs[turn:] // the first turn fills caches
	return report.Latency("docker: Execute true | docker exec", ours, theirs, 0.5, report.Part(20), report.Bound{}), nil
}

// dockerCreations has "docker run" of the image as the yardstick, without the sandbox
// and, with a pool, without its refill meanwhile.
func dockerCreations(ctx context.Context, b *bench, image, template string, ready func() error) (ours, theirs report.Samples, err error) {
	return creations(ctx, b, template, b.count(15), 1, ready, func(id string, remove func()) (time.Duration, error) {
		remove()
		if ready != nil {
			if err := ready(); err != nil {
				return 0, err
			}
		}
		name := "sandgate-" + id
		took, err := docker(ctx, "run", "--name", name, "--network", "none", image, "true")
		if err == nil {
			_, err = docker(ctx, "rm", name)
		}
		return took, err
	})
}

// docker runs the docker program and returns how long that took.
func docker(ctx context.Context, args ...string) (time.Duration, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "docker", args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	start := time.Now()
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("docker %s: %w: %s", args[0], err, out.Bytes())
	}
	return time.Since(start), nil
}
