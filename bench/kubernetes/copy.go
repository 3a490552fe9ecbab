package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/sandgate/sandgate/bench/report"
)

// copyBesideKubectl compares the two commands that copy a file into a pod and out
// of it, with their start: sandgate cp, which checks a SHA-256, and kubectl cp.
func (b *bench) copyBesideKubectl(ctx context.Context, by transport) ([]report.Figure, error) {
	if _, err := exec.LookPath("kubectl"); err != nil {
		return nil, &report.CannotRun{Reason: err.Error()}
	}
	s, err := b.raw(ctx, by)
	if err != nil {
		return nil, err
	}
	sandbox, remove, err := s.create(ctx, "bench-copy")
	if err != nil {
		return nil, err
	}
	defer remove()
	if err := s.full(ctx); err != nil {
		return nil, err
	}
	size := max(1<<20, int64(200*(1<<20)*b.scale))
	local := filepath.Join(b.dir, "payload")
	if err := payload(local, size); err != nil {
		return nil, err
	}
	p, err := b.rawPod(ctx, s, sandbox)
	if err != nil {
		return nil, err
	}
	inPod := func(name string) string { return fmt.Sprintf("%s/%s:/workspace/%s", p.namespace, p.name, name) }
	ours := func(from, to string) error {
		cmd := exec.CommandContext(ctx, b.binary, "cp", "--quiet", from, to)
		cmd.Env = append(os.Environ(), "SANDGATE_ADDRESS="+s.Address)
		return quiet(cmd)
	}
	theirs := func(from, to string) error {
		return quiet(exec.CommandContext(ctx, "kubectl", "cp", "-c", p.container, from, to))
	}
	var took [4]report.Samples
	var failures int
	var note string
	const rounds = 3
	for range rounds {
		for i, step := range []func() error{
			func() error { return ours(local, "bench-copy:/workspace/ours") },
			func() error { return theirs(local, inPod("theirs")) },
			func() error { return ours("bench-copy:/workspace/ours", filepath.Join(b.dir, "ours")) },
			func() error { return theirs(inPod("theirs"), filepath.Join(b.dir, "theirs")) },
		} {
			d, err := timed(step)
			for i%2 == 1 && err != nil && failures < mayFail && ctx.Err() == nil {
				failures++
				note = fmt.Sprintf("kubectl cp failed %d times and was run again: %v", failures, err)
				d, err = timed(step)
			}
			if err != nil {
				return nil, err
			}
			took[i] = append(took[i], d)
		}
		for _, name := range []string{"ours", "theirs"} {
			path := filepath.Join(b.dir, name)
			if err := quiet(exec.CommandContext(ctx, "cmp", local, path)); err != nil {
				return nil, fmt.Errorf("what came back is not what went up: %w", err)
			}
			if err := os.Remove(path); err != nil {
				return nil, err
			}
		}
	}
	what := fmt.Sprintf("%d MiB %%s, %s | kubectl cp, same pod", size>>20, by.of(rawPods))
	up := report.Throughput(fmt.Sprintf(what, "up"), size, took[0], took[1], report.AtLeast(1), report.Bound{})
	down := report.Throughput(fmt.Sprintf(what, "down"), size, took[2], took[3], report.AtLeast(1), report.Bound{})
	down.Note = note
	return []report.Figure{up, down}, nil
}

// mayFail is how often kubectl cp may lose the end of a file, as it does on a busy
// machine.
const mayFail = 5

// payload writes a file that does not compress.
func payload(path string, size int64) error {
	from, err := os.Open("/dev/urandom")
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.Create(path)
	if err != nil {
		return err
	}
	defer to.Close()
	_, err = io.CopyN(to, from, size)
	return err
}

// quiet runs a program and shows what it wrote only when it failed.
func quiet(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, out)
	}
	return nil
}
