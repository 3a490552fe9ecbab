package kube

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"runtime"
	"strconv"
	"strings"
)

// The probing scripts print one finding per line:
//
//	arch M     the machine name
//	ready D    the agent is installed, and its sockets can be in D
//	dir D      the directory to use
//	have NAME  a file that exists
//	no TEXT    an unusable directory, and why
func parseSite(out string) (site, error) {
	s := site{have: make(map[string]bool)}
	for line := range strings.Lines(out) {
		key, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), " ")
		switch key {
		case "arch":
			s.arch = goArch(value)
		case "ready":
			s.ready, s.dir = true, value
		case "dir":
			s.dir = value
		case "have":
			s.have[value] = true
		case "no":
			s.tried = append(s.tried, value)
		default:
			return site{}, fmt.Errorf("unexpected output of the container: %q", complaint([]byte(line)))
		}
	}
	if s.dir != "" && !path.IsAbs(s.dir) {
		return site{}, fmt.Errorf("the container offers the directory %q", s.dir)
	}
	if s.arch == "" {
		s.arch = runtime.GOARCH
	}
	return s, nil
}

// probeWith runs a probing script.
func probeWith(ctx context.Context, run Runner, argv []string) (site, error) {
	r, err := run(ctx, argv, nil)
	switch {
	case err != nil:
		return site{}, err
	case r.Code == codeNotFound || r.Code == codeNotRunnable:
		return site{}, fmt.Errorf("%s: %w", argv[0], errNoExecutable)
	case r.Code != 0:
		return site{}, fmt.Errorf("find a directory for the agent: exit code %d: %s", r.Code, complaint(r.Stderr))
	}
	return parseSite(string(r.Stdout))
}

// shellInstaller needs sh, mkdir, chmod, mv, rm, wc and head or cat.
type shellInstaller struct{}

// The directory must allow execution. Only the start of a program shows whether its
// file system is mounted noexec. A script without an interpreter line needs no path
// of a shell: if the kernel may execute it but does not know how, the shell runs it
// itself. If mkdir fails, another injector may have made the directory: concurrent
// injectors must agree on one.
const shellProbe = `umask 077
m=$(uname -m 2>/dev/null) && echo "arch $m"
try() {
	[ -d "$1" ] || return 1
	d="${1%/}/` + injectDir + `"
	[ -d "$d" ] || mkdir "$d" 2>/dev/null || [ -d "$d" ] || { echo "no $1: not writable"; return 1; }
	p="$d/probe.$$"
	{ echo "exit 0" >"$p"; } 2>/dev/null || { echo "no $1: not writable"; return 1; }
	chmod 700 "$p" && "$p" 2>/dev/null
	c=$?
	rm -f "$p"
	[ $c = 0 ] || { echo "no $1: mounted noexec"; return 1; }
}
for c in "$@" "${HOME:-}" "$PWD"; do
	[ -n "$c" ] && try "$c" || continue
	if [ -x ` + preinstalled + `/` + agentProgram + ` ]; then echo "ready $d"; exit 0; fi
	echo "dir $d"
	for f in "$d"/agent-*; do [ -x "$f" ] && echo "have ${f##*/}"; done
	exit 0
done
exit 0`

func (shellInstaller) probe(ctx context.Context, run Runner, dirs []string) (site, error) {
	return probeWith(ctx, run, append([]string{"sh", "-c", shellProbe, "sh"}, dirs...))
}

// The end of the input may never arrive, so head counts the bytes. An incomplete
// file never gets the agent's name.
const shellPut = `umask 077
f=$1 n=$2
shift 2
t="$f.$$"
trap 'rm -f "$t"' EXIT
if command -v head >/dev/null; then head -c "$n" >"$t"; else cat >"$t"; fi || exit 1
[ $(wc -c <"$t") = "$n" ] || { echo "the agent did not arrive whole" >&2; exit 1; }
chmod 700 "$t" && mv -f "$t" "$f" || exit 1
trap - EXIT
exec "$@" </dev/null`

func (shellInstaller) put(ctx context.Context, run Runner, at Injected, agent []byte, start []string) (Result, error) {
	argv := append([]string{"sh", "-c", shellPut, "sh", at.Program, strconv.Itoa(len(agent))}, start...)
	return run(ctx, argv, bytes.NewReader(agent))
}

// pythonInstaller is for images with python3 and without a shell.
type pythonInstaller struct{}

const pythonProbe = `import os, platform, sys
print("arch", platform.machine())
seen = sys.argv[1:] + [os.environ.get("HOME", ""), os.getcwd()]
for c in seen:
    if not c or not os.path.isdir(c):
        continue
    d = os.path.join(c, "` + injectDir + `")
    try:
        os.makedirs(d, 0o700, exist_ok=True)
        p = os.path.join(d, "probe.%d" % os.getpid())
        open(p, "w").close()
        os.remove(p)
    except OSError as e:
        print("no %s: %s" % (c, e.strerror))
        continue
    if os.statvfs(d).f_flag & os.ST_NOEXEC:
        print("no %s: mounted noexec" % c)
        continue
    if os.access("` + preinstalled + `/` + agentProgram + `", os.X_OK):
        print("ready", d)
    else:
        print("dir", d)
        for f in os.listdir(d):
            if f.startswith("agent-"):
                print("have", f)
    break
`

func (pythonInstaller) probe(ctx context.Context, run Runner, dirs []string) (site, error) {
	return probeWith(ctx, run, append([]string{"python3", "-c", pythonProbe}, dirs...))
}

const pythonPut = `import os, sys
f, n = sys.argv[1], int(sys.argv[2])
t = "%s.%d" % (f, os.getpid())
try:
    with open(t, "wb") as out:
        left = n
        while left > 0:
            b = sys.stdin.buffer.read1(min(left, 1 << 20))
            if not b:
                sys.exit("the agent did not arrive whole")
            out.write(b)
            left -= len(b)
    os.chmod(t, 0o700)
    os.rename(t, f)
except BaseException:
    if os.path.exists(t):
        os.remove(t)
    raise
null = os.open(os.devnull, os.O_RDONLY)
os.dup2(null, 0)
os.execv(sys.argv[3], sys.argv[3:])
`

func (pythonInstaller) put(ctx context.Context, run Runner, at Injected, agent []byte, start []string) (Result, error) {
	argv := append([]string{"python3", "-c", pythonPut, at.Program, strconv.Itoa(len(agent))}, start...)
	return run(ctx, argv, bytes.NewReader(agent))
}

// tarInstaller is for images with tar and neither a shell nor python3. It cannot
// inspect the container, so it tries each directory by writing to it.
type tarInstaller struct{}

func (tarInstaller) probe(ctx context.Context, run Runner, dirs []string) (site, error) {
	s := site{arch: runtime.GOARCH}
	empty, err := archive("", nil)
	if err != nil {
		return s, err
	}
	for _, dir := range dirs {
		if dir == "/dev/shm" {
			// Runtimes mount it noexec, which would show too late.
			continue
		}
		r, err := run(ctx, []string{"tar", "-x", "-f", "-", "-C", dir}, bytes.NewReader(empty))
		switch {
		case err != nil:
			return s, err
		case r.Code == codeNotFound || r.Code == codeNotRunnable:
			return s, fmt.Errorf("tar: %w", errNoExecutable)
		case r.Code == 0:
			s.dir = path.Join(dir, injectDir)
			return s, nil
		}
		s.tried = append(s.tried, dir+": "+complaint(r.Stderr))
	}
	return s, nil
}

func (tarInstaller) put(ctx context.Context, run Runner, at Injected, agent []byte, start []string) (Result, error) {
	packed, err := archive(path.Base(at.Program), agent)
	if err != nil {
		return Result{}, err
	}
	r, err := run(ctx, []string{"tar", "-x", "-f", "-", "-C", path.Dir(at.Dir)}, bytes.NewReader(packed))
	if err != nil || r.Code != 0 {
		return r, err
	}
	return run(ctx, start, nil)
}

// archive returns a tar archive of the agent's directory and, if name is not
// empty, of the agent.
func archive(name string, agent []byte) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: injectDir + "/", Mode: 0o700})
	if name != "" {
		err = errors.Join(err, w.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: path.Join(injectDir, name), Mode: 0o700, Size: int64(len(agent)),
		}))
		_, werr := w.Write(agent)
		err = errors.Join(err, werr)
	}
	err = errors.Join(err, w.Close())
	return b.Bytes(), err
}
