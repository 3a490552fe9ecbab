package process

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/spawn"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

const (
	// defaultPath is the PATH of commands whose environment has none.
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// maxArg is the largest argument that the kernel accepts, including its NUL.
	maxArg = 128 << 10
)

// setProgram fills in the program and its arguments.
func setProgram(spec *spawn.Spec, r *sandboxv1.ExecuteRequest, std *stdio) error {
	if argv := r.GetArgv(); argv != nil {
		path, err := lookPath(argv.GetArgs()[0], spec.Dir, spec.Env)
		if err != nil {
			return err
		}
		spec.Path, spec.Argv = path, argv.GetArgs()
		return nil
	}
	spec.Path = r.GetShellPath()
	if spec.Path == "" {
		spec.Path = "/bin/sh"
	}
	script := r.GetShell()
	if len(script) >= maxArg {
		// The shell reads the script from descriptor 3. Because it does so with "."
		// and not as an operand, $0 and standard input are those of -c.
		fd, err := scriptFile(script)
		if err != nil {
			return startError(spec.Path, spec.Dir, err)
		}
		std.child = append(std.child, fd)
		std.files[3] = fd
		script = ". /proc/self/fd/3"
	}
	spec.Argv = []string{spec.Path, "-c", script}
	return nil
}

// scriptFile returns a descriptor from 10 up of a file in memory.
func scriptFile(script string) (int, error) {
	fd, err := unix.MemfdCreate("script", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("%w: script: %w", spawn.ErrSetup, err)
	}
	defer func() { _ = unix.Close(fd) }()
	for b := []byte(script); len(b) > 0; {
		n, err := unix.Write(fd, b)
		if err != nil {
			return -1, fmt.Errorf("%w: script: %w", spawn.ErrSetup, err)
		}
		b = b[n:]
	}
	if _, err := unix.Seek(fd, 0, 0); err != nil {
		return -1, fmt.Errorf("%w: script: %w", spawn.ErrSetup, err)
	}
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 10)
	if err != nil {
		return -1, fmt.Errorf("%w: script: %w", spawn.ErrSetup, err)
	}
	return high, nil
}

// environ returns the command's environment: the sandbox's, overridden by the
// trace context and the request's.
func (s *Service) environ(r *sandboxv1.ExecuteRequest, trace traceContext) []string {
	extra := r.GetEnv()
	if traced := trace.environ(r); traced != nil {
		maps.Copy(traced, extra)
		extra = traced
	}
	env := make([]string, 0, len(s.cfg.Env)+len(extra)+2)
	path, term := false, false
	for _, kv := range s.cfg.Env {
		name, _, _ := strings.Cut(kv, "=")
		if _, overridden := extra[name]; overridden {
			continue
		}
		path, term = path || name == "PATH", term || name == "TERM"
		env = append(env, kv)
	}
	for k, v := range extra {
		path, term = path || k == "PATH", term || k == "TERM"
		env = append(env, k+"="+v)
	}
	if !path {
		env = append(env, "PATH="+defaultPath)
	}
	if r.GetTerminal() != nil && !term {
		env = append(env, "TERM=xterm-256color")
	}
	return env
}

// lookPath finds a program as execvp does: by the command's own PATH, and
// relative to its own working directory.
func lookPath(name, dir string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	path := defaultPath
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	var denied error
	for _, p := range filepath.SplitList(path) {
		if p == "" {
			p = "."
		}
		full := p + "/" + name
		file := full
		if !filepath.IsAbs(p) {
			file = filepath.Join(dir, full)
		}
		var st unix.Stat_t
		if unix.Stat(file, &st) != nil || st.Mode&unix.S_IFMT == unix.S_IFDIR {
			continue
		}
		if err := unix.Access(file, unix.X_OK); err != nil {
			denied = err
			continue
		}
		return full, nil
	}
	if denied != nil && !errors.Is(denied, fs.ErrNotExist) {
		return "", notExecutable(name, denied)
	}
	return "", commandNotFound(name)
}
