package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sandgate/sandgate/bench/report"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// createToFirstCommand compares the time from CreateSandbox to the end of a
// first `true` with `runc run` of the same bundle and `true` as its process.
func createToFirstCommand(ctx context.Context, b *bench) ([]report.Figure, error) {
	// At this level the provider logs the time of each step.
	if err := b.serve(ctx, "--log-level", "debug", "--log-format", "json"); err != nil {
		return nil, err
	}
	ours, runc, err := runcCreations(ctx, b, "default", nil)
	b.stop() // then its log is complete
	steps, missing := b.steps("plan", "disk", "mount", "runtime", "agent")
	if err := errors.Join(err, missing, b.serve(ctx)); err != nil {
		return nil, err
	}
	return append([]report.Figure{
		report.Latency("create → first command, cold | runc run", ours, runc, 0.5, report.AtMost(1.4), report.AtMost(1.2)),
	}, steps...), nil
}

// steps reads the times of the steps of creations from the server's log.
func (b *bench) steps(names ...string) (figures []report.Figure, err error) {
	took := make(map[string]report.Samples)
	for line := range strings.Lines(b.log.String()) {
		var record map[string]any
		if json.Unmarshal([]byte(line), &record) != nil || record["msg"] != "started a container" {
			continue
		}
		for _, name := range names {
			text, _ := record[name].(string)
			if d, err := time.ParseDuration(text); err == nil {
				took[name] = append(took[name], d)
			}
		}
	}
	for _, name := range names {
		s := took[name]
		if len(s) == 0 {
			return nil, fmt.Errorf("the server's log has no time of the step %q", name)
		}
		figures = append(figures, report.Figure{What: "  of it: " + name, Ours: report.Milliseconds(s.Median())})
	}
	return figures, nil
}

// creations measures the time from CreateSandbox to the end of a first `true`, and a
// yardstick, in turns. Before each creation, ready may wait for a condition. The first
// ones, which fill caches, do not count.
func creations(ctx context.Context, b *bench, template string, n, first int, ready func() error, yardstick func(id string, remove func()) (time.Duration, error)) (ours, theirs report.Samples, err error) {
	for i := range n + first {
		if ready != nil {
			if err := ready(); err != nil {
				return nil, nil, err
			}
		}
		id := fmt.Sprintf("bench-create-%s-%d", template, i)
		start := time.Now()
		remove, err := b.create(ctx, &sandboxv1.CreateSandboxRequest{SandboxId: id, Template: template})
		if err != nil {
			return nil, nil, err
		}
		remove = sync.OnceFunc(remove)
		err = complete(ctx, b, id, "true")
		took := time.Since(start)
		var other time.Duration
		if err == nil {
			other, err = yardstick(id, remove)
		}
		remove()
		if err != nil {
			return nil, nil, err
		}
		if i >= first {
			ours, theirs = append(ours, took), append(theirs, other)
		}
	}
	return ours, theirs, nil
}

// runcCreations has "runc run" of the sandbox's own bundle as the yardstick.
func runcCreations(ctx context.Context, b *bench, template string, ready func() error) (ours, theirs report.Samples, err error) {
	return creations(ctx, b, template, b.count(30), 2, ready, func(id string, _ func()) (time.Duration, error) { return runBundle(ctx, b, id) })
}

// runBundle runs the sandbox's own bundle once more with `true` as its process,
// under another name, and returns how long that took.
func runBundle(ctx context.Context, b *bench, id string) (time.Duration, error) {
	got, err := b.client.GetSandbox(ctx, &sandboxv1.GetSandboxRequest{SandboxId: id})
	if err != nil {
		return 0, err
	}
	config, err := findConfig(b.dir, got.GetSandbox().GetSubstrateName())
	if err != nil {
		return 0, err
	}
	raw, err := os.ReadFile(config)
	if err != nil {
		return 0, err
	}
	var spec map[string]any
	if err := json.Unmarshal(raw, &spec); err != nil {
		return 0, err
	}
	process, ok := spec["process"].(map[string]any)
	if !ok {
		return 0, fmt.Errorf("%s has no process", config)
	}
	process["args"] = []string{"/bin/true"}
	if linux, ok := spec["linux"].(map[string]any); ok {
		linux["cgroupsPath"] = "/sandgate-bench-yardstick"
	}
	bundle, err := os.MkdirTemp(b.dir, "bundle-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(bundle)
	if err := replaceHidden(spec, bundle); err != nil {
		return 0, err
	}
	if raw, err = json.Marshal(spec); err != nil {
		return 0, err
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), raw, 0o600); err != nil {
		return 0, err
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "runc", "--root", filepath.Join(b.dir, "runc"), "run", "--bundle", bundle, "bench-yardstick")
	cmd.Stdout, cmd.Stderr = &out, &out
	start := time.Now()
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("runc run: %w: %s", err, out.Bytes())
	}
	return time.Since(start), nil
}

// replaceHidden gives the bundle plain directories in place of those that only
// the sandbox's own mount namespace holds: the root, with the host's links to its
// system directories, and the directories mounted into it.
func replaceHidden(spec map[string]any, bundle string) error {
	root := filepath.Join(bundle, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if target, err := os.Readlink("/" + name); err == nil {
			if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
				return err
			}
		}
	}
	spec["root"] = map[string]any{"path": root, "readonly": true}
	mounts, _ := spec["mounts"].([]any)
	for i, m := range mounts {
		mount, _ := m.(map[string]any)
		source, _ := mount["source"].(string)
		if mount["type"] != "bind" {
			continue
		}
		if strings.HasPrefix(filepath.Base(source), "shared-") {
			source, _ = mount["destination"].(string)
			mount["source"] = source
		}
		if _, err := os.Stat(source); err == nil {
			continue
		}
		dir := filepath.Join(bundle, fmt.Sprintf("mount-%d", i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		mount["source"] = dir
	}
	return nil
}

// findConfig returns the OCI configuration of a sandbox in the state directory.
func findConfig(dir, substrateName string) (string, error) {
	var found string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		if d.Name() == "config.json" && filepath.Base(filepath.Dir(path)) == substrateName ||
			d.Name() == "config.json" && filepath.Base(filepath.Dir(filepath.Dir(path))) == substrateName {
			found = path
			return fs.SkipAll
		}
		return nil
	})
	if err == nil && found == "" {
		err = fmt.Errorf("no config.json of %s below %s", substrateName, dir)
	}
	return found, err
}
