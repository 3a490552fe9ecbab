package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	runc "github.com/containerd/go-runc"

	"github.com/sandgate/sandgate/providers"
)

// engine drives the OCI runtime.
type engine struct {
	cli    *runc.Runc
	name   string
	root   string
	gvisor bool
}

func newEngine(command string, l layout) (*engine, error) {
	path, err := exec.LookPath(command)
	if err != nil {
		return nil, fmt.Errorf("OCI runtime %q is not installed: %w", command, err)
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	name := filepath.Base(path)
	root := filepath.Join(l.runtime(), name)
	e := &engine{cli: &runc.Runc{Command: path, Root: root}, name: name, root: root, gvisor: isGVisor(name)}
	if e.gvisor {
		e.cli.ExtraArgs = gvisorFlags("none")
	}
	return e, os.MkdirAll(root, 0o700)
}

// command is a call of the runtime.
func (e *engine) command(ctx context.Context, args ...string) *exec.Cmd {
	all := append([]string{"--root", e.root}, e.cli.ExtraArgs...)
	return exec.CommandContext(ctx, e.cli.Command, append(all, args...)...)
}

// stdio gives a container /dev/null to read from and one file to write to. Files
// are handed on as they are, so nobody has to stay and copy.
type stdio struct{ out *os.File }

var _ runc.IO = stdio{}

func (stdio) Close() error          { return nil }
func (stdio) Stdin() io.WriteCloser { return nil }
func (stdio) Stdout() io.ReadCloser { return nil }
func (stdio) Stderr() io.ReadCloser { return nil }
func (s stdio) Set(cmd *exec.Cmd)   { cmd.Stdout, cmd.Stderr = s.out, s.out }

// runtimeTimeout bounds one call of the runtime.
const runtimeTimeout = 30 * time.Second

// unhurried lets a call of the runtime come to its end although its caller has
// given up: it takes a twentieth of a second, and a runtime that is killed half
// way leaves processes that nobody knows.
func unhurried(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(context.WithoutCancel(ctx), runtimeTimeout, errSlowRuntime)
}

var errSlowRuntime = fmt.Errorf("the OCI runtime did not return within %v: %w", runtimeTimeout, providers.ErrStartTimeout)

// run starts a container and returns when its first process was started. What
// the runtime or that process wrote until then explains a failure.
func (e *engine) run(ctx context.Context, pl *plan, note *note, files ...*os.File) error {
	ctx, cancel := unhurried(ctx)
	defer cancel()
	cli := e.cli
	if e.gvisor && pl.spec.Network == providers.NetworkFull {
		shared := *cli
		shared.ExtraArgs = gvisorFlags("host")
		cli = &shared
	}
	_, err := cli.Run(ctx, pl.id, string(pl.bundle), &runc.CreateOpts{
		IO: stdio{out: note.file}, PidFile: pl.bundle.pid(), Detach: true, ExtraFiles: files,
	})
	if ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		return fmt.Errorf("%s run: %w: %s", e.name, err, note.text())
	}
	return nil
}

// endStray ends calls of the runtime for a container that their server did not
// live to see the end of. One of them could make the container after it was
// found missing.
func (e *engine) endStray(ctx context.Context, id string) error {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		args := strings.Split(strings.TrimRight(string(data), "\x00"), "\x00")
		if len(args) < 4 || args[1] != "--root" || args[2] != e.root || args[len(args)-1] != id {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			continue
		}
		w, err := watch(pid)
		if err != nil || w == nil {
			continue
		}
		err = errors.Join(w.kill(), w.wait(ctx))
		w.close()
		if err != nil {
			return fmt.Errorf("end a stray %s: %w", e.name, err)
		}
	}
	return nil
}

// remove forgets a container whose processes are gone, or that was half made.
func (e *engine) remove(ctx context.Context, id string) error {
	if e.gvisor {
		return e.removeGVisor(ctx, id)
	}
	if !e.knows(id) {
		return nil
	}
	err := e.cli.Delete(ctx, id, &runc.DeleteOpts{Force: true})
	if err == nil {
		return nil
	}
	if !e.knows(id) {
		return nil
	}
	return fmt.Errorf("%s delete: %w", e.name, err)
}

// knows reports whether the runtime has something of a container.
func (e *engine) knows(id string) bool {
	return exists(filepath.Join(e.root, id))
}

// containers lists what the runtime knows; it has a directory for each, gVisor
// files.
func (e *engine) containers() ([]string, error) {
	entries, err := os.ReadDir(e.root)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, entry := range entries {
		if id, ok := gvisorContainer(entry.Name()); ok && !slices.Contains(out, id) {
			out = append(out, id)
		}
		if entry.IsDir() && !strings.HasPrefix(entry.Name(), ".") {
			out = append(out, entry.Name())
		}
	}
	return out, nil
}

func (e *engine) version(ctx context.Context) string {
	if e.gvisor {
		return gvisorVersion(ctx, e.cli.Command)
	}
	v, err := e.cli.Version(ctx)
	if err != nil {
		return ""
	}
	return v.Runc
}
