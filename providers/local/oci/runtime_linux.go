package oci

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

// Runtime is an OCI runtime.
type Runtime struct {
	Name   string // such as "runc"
	Path   string // of its executable
	GVisor bool
	// MapsMounts: it has idmapped mounts in user namespaces, as runc has from 1.2 on.
	MapsMounts bool
	root       string // its directory for containers
}

// New finds a runtime by its name or path. Below dir it gets a directory for its
// containers.
func New(command, dir string) (*Runtime, error) {
	path, err := exec.LookPath(command)
	if err != nil {
		return nil, fmt.Errorf("OCI runtime %q is not installed: %w", command, err)
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	name := filepath.Base(path)
	r := &Runtime{Name: name, Path: path, GVisor: IsGVisor(name), root: filepath.Join(dir, name)}
	return r, os.MkdirAll(r.root, 0o700)
}

// cli returns the runtime's command line for a kind of network.
func (r *Runtime) cli(network string) *runc.Runc {
	cli := &runc.Runc{Command: r.Path, Root: r.root}
	if r.GVisor {
		cli.ExtraArgs = gvisorFlags(network)
	}
	return cli
}

// The networks of a container.
const (
	noNetwork   = "none"
	hostNetwork = "host"
)

// command is a call of the runtime.
func (r *Runtime) command(ctx context.Context, args ...string) *exec.Cmd {
	all := append([]string{"--root", r.root}, r.cli(noNetwork).ExtraArgs...)
	return exec.CommandContext(ctx, r.Path, append(all, args...)...)
}

// stdio gives a container /dev/null to read from and one file to write to. The
// runtime inherits the files, so no process has to stay and copy.
type stdio struct{ out *os.File }

var _ runc.IO = stdio{}

func (stdio) Close() error          { return nil }
func (stdio) Stdin() io.WriteCloser { return nil }
func (stdio) Stdout() io.ReadCloser { return nil }
func (stdio) Stderr() io.ReadCloser { return nil }
func (s stdio) Set(cmd *exec.Cmd)   { cmd.Stdout, cmd.Stderr = s.out, s.out }

// runtimeTimeout limits one call of the runtime.
const runtimeTimeout = 30 * time.Second

// uninterrupted lets a call of the runtime finish although its caller has given
// up. A call takes 50 ms, and a runtime killed half way leaves orphaned
// processes.
func uninterrupted(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(context.WithoutCancel(ctx), runtimeTimeout, errSlowRuntime)
}

var errSlowRuntime = fmt.Errorf("the OCI runtime did not return within %v: %w", runtimeTimeout, providers.ErrStartTimeout)

// Container is what the runtime needs to start one.
type Container struct {
	ID          string
	Bundle      string // directory of its configuration
	PidFile     string
	HostNetwork bool
	Files       []*os.File // handed to its first process from descriptor 3 on
}

// Run starts a container and returns when its first process was started. The
// error of a failure includes what the runtime or that process wrote.
func (r *Runtime) Run(ctx context.Context, c Container, out *Output) error {
	ctx, cancel := uninterrupted(ctx)
	defer cancel()
	network := noNetwork
	if c.HostNetwork {
		network = hostNetwork
	}
	_, err := r.cli(network).Run(ctx, c.ID, c.Bundle, &runc.CreateOpts{
		IO: stdio{out: out.file}, PidFile: c.PidFile, Detach: true, ExtraFiles: c.Files,
	})
	if ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		return fmt.Errorf("%s run: %w: %s", r.Name, err, out.Text())
	}
	return nil
}

// EndStray kills calls of the runtime for a container that a killed server has
// left running. One of them could still make the container after it was found
// missing.
func (r *Runtime) EndStray(ctx context.Context, id string) error {
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
		if len(args) < 4 || args[1] != "--root" || args[2] != r.root || args[len(args)-1] != id {
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
			return fmt.Errorf("end a stray %s: %w", r.Name, err)
		}
	}
	return nil
}

// Remove deletes a container whose processes are gone, or that was half made.
func (r *Runtime) Remove(ctx context.Context, id string) error {
	if r.GVisor {
		return r.removeGVisor(ctx, id)
	}
	if !r.has(id) {
		return nil
	}
	err := r.cli(noNetwork).Delete(ctx, id, &runc.DeleteOpts{Force: true})
	if err == nil {
		return nil
	}
	if !r.has(id) {
		return nil
	}
	return fmt.Errorf("%s delete: %w", r.Name, err)
}

// has reports whether the runtime has state of a container.
func (r *Runtime) has(id string) bool {
	return fileExists(filepath.Join(r.root, id))
}

// Containers lists the runtime's containers: a directory for each, with gVisor
// files.
func (r *Runtime) Containers() ([]string, error) {
	entries, err := os.ReadDir(r.root)
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

// Version returns the runtime's version, or "" if it is unknown.
func (r *Runtime) Version(ctx context.Context) string {
	if r.GVisor {
		return gvisorVersion(ctx, r.Path)
	}
	v, err := r.cli(noNetwork).Version(ctx)
	if err != nil {
		return ""
	}
	return v.Runc
}

func fileExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
