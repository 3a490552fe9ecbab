package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandgate/sandgate/providers"
)

var builtAgent = sync.OnceValues(func() ([]byte, error) {
	if path := os.Getenv("SANDGATE_TEST_AGENT"); path != "" {
		return os.ReadFile(path)
	}
	dir, err := os.MkdirTemp("", "sandgate-inject-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "sandgate-agent")
	cmd := exec.Command("go", "build", "-o", path, "github.com/sandgate/sandgate/cmd/sandgate-agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the agent: %w: %s", err, out)
	}
	return os.ReadFile(path)
})

// fakeContainer is a container: programs of this machine, of which some are missing.
type fakeContainer struct {
	home    string
	without []string
	// tools is a directory of programs that come before this machine's own.
	tools string

	mu   sync.Mutex
	runs int
	// breakInput makes the next transfer end early.
	breakInput bool
}

func (r *fakeContainer) run(ctx context.Context, command []string, stdin io.Reader) (Result, error) {
	r.mu.Lock()
	r.runs++
	if r.breakInput && stdin != nil {
		stdin, r.breakInput = io.LimitReader(stdin, 1000), false
	}
	r.mu.Unlock()
	for _, name := range r.without {
		if command[0] == name {
			return Result{}, fmt.Errorf("%s: %w", name, errNoExecutable)
		}
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir, cmd.Stdin = r.home, stdin
	cmd.Env = append(os.Environ(), "HOME="+r.home, "PATH="+r.tools+":"+os.Getenv("PATH"))
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		err = nil
	case errors.Is(err, os.ErrNotExist), errors.Is(err, exec.ErrNotFound):
		err = fmt.Errorf("%w: %w", errNoExecutable, err)
	}
	return Result{Stdout: out.Bytes(), Stderr: errOut.Bytes(), Code: cmd.ProcessState.ExitCode()}, err
}

// newInjector returns an Injector over directories of the test's own.
func newInjector(t *testing.T, dirs ...string) (*Injector, *fakeContainer) {
	t.Helper()
	if _, err := builtAgent(); err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	if len(dirs) == 0 {
		dirs = []string{t.TempDir()}
	}
	for _, dir := range append(dirs, home) {
		t.Cleanup(func() { endAgent(t, filepath.Join(dir, injectDir)) })
	}
	return &Injector{Agent: func(string) ([]byte, error) { return builtAgent() }, dirs: dirs}, &fakeContainer{home: home}
}

func agentPID(dir string) int {
	note, _ := os.ReadFile(filepath.Join(dir, "agent.pid"))
	pid, _, _ := strings.Cut(string(note), " ")
	n, _ := strconv.Atoi(pid)
	return n
}

func endAgent(t *testing.T, dir string) {
	if pid := agentPID(dir); pid > 1 {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Error(err)
		}
	}
}

func alive(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && len(data) > 0
}

func answers(t *testing.T, at Injected, incarnation string) {
	t.Helper()
	conn, err := net.DialTimeout("unix", filepath.Join(at.Dir, incarnation+".sock"), waitTimeout)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	// A gRPC server speaks first.
	if err := conn.SetReadDeadline(time.Now().Add(waitTimeout)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

// Of two injections at once one comes too late to make the directory. It must
// take that one all the same: in another it would start a second agent.
func TestInjectTakesADirectoryThatAnotherMakes(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	in, container := newInjector(t, first, second)
	container.tools = t.TempDir()
	const late = "#!/bin/sh\nPATH=${PATH#*:} mkdir \"$@\"\nexit 1\n"
	if err := os.WriteFile(filepath.Join(container.tools, "mkdir"), []byte(late), 0o700); err != nil {
		t.Fatal(err)
	}
	at, err := in.Inject(t.Context(), container.run, Injection{Incarnation: "abc-1", Container: "main", Where: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(first, injectDir); at.Dir != want {
		t.Errorf("it is in %s, not in %s", at.Dir, want)
	}
	answers(t, at, "abc-1")
}

// What a runtime says of a program that is not there and of a container that has
// just ended is nearly the same.
func TestMissingProgramAndEndedContainerDiffer(t *testing.T) {
	for text, want := range map[string]bool{
		`exec failed: unable to start container process: exec: "sh": executable file not found in $PATH: unknown`:                        true,
		`exec failed: unable to start container process: exec: "/bin/sh": stat /bin/sh: no such file or directory: unknown`:              true,
		`exec failed: unable to create new parent process: namespace path: lstat /proc/30479/ns/ipc: no such file or directory: unknown`: false,
		`exec failed: cannot exec in a stopped container: unknown`:                                                                       false,
	} {
		if got := notRunnable(errors.New(text)); got != want {
			t.Errorf("%v: %s", got, text)
		}
	}
}

func TestInjectByWhatTheImageHas(t *testing.T) {
	for _, c := range []struct {
		name    string
		without []string
	}{
		{"sh", nil},
		{"python3 without sh", []string{"sh"}},
		{"tar without sh and python3", []string{"sh", "python3"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			in, container := newInjector(t)
			container.without = c.without
			want := Injection{Incarnation: "abc-1", Workdir: "/", Container: "main", Where: "test"}
			at, err := in.Inject(t.Context(), container.run, want)
			if err != nil {
				t.Fatal(err)
			}
			answers(t, at, "abc-1")
			pid := agentPID(at.Dir)
			again, err := in.Inject(t.Context(), container.run, want)
			if err != nil || again != at {
				t.Errorf("again: %+v after %+v, %v", again, at, err)
			}
			if now := agentPID(at.Dir); now != pid || !alive(pid) {
				t.Errorf("a second injection made process %d of %d", now, pid)
			}
			// The agent is in a session of its own: it outlives what started it.
			if sid, err := syscall.Getpgid(pid); err != nil || sid != pid {
				t.Errorf("process group %d of agent %d, %v", sid, pid, err)
			}
		})
	}
}

func TestInjectAnotherIncarnationEndsTheFirst(t *testing.T) {
	in, container := newInjector(t)
	at, err := in.Inject(t.Context(), container.run, Injection{Incarnation: "one"})
	if err != nil {
		t.Fatal(err)
	}
	first := agentPID(at.Dir)
	if _, err := in.Start(t.Context(), container.run, at, Injection{Incarnation: "two"}); err != nil {
		t.Fatal(err)
	}
	answers(t, at, "two")
	if alive(first) {
		t.Error("the agent before lives on")
	}
}

// The agent that runs counts, and "start" prints what it was started with.
func TestInjectedIsWhatTheAgentWasStartedWith(t *testing.T) {
	for _, c := range []struct {
		stdout   string
		want     Injection
		port     int32
		egress   bool
		redirect bool
	}{
		{"", Injection{}, 0, false, false},
		{"", Injection{Port: 7778, Egress: true, Redirect: true}, 0, false, false},
		{"tcp :7778\n", Injection{Port: 7778}, 7778, false, false},
		{"egress\n", Injection{Egress: true, Redirect: true}, 0, true, false},
		{"tcp :7778\negress\nredirect\n", Injection{Port: 7778}, 7778, true, true},
	} {
		run := func(context.Context, []string, io.Reader) (Result, error) {
			return Result{Stdout: []byte(c.stdout)}, nil
		}
		got, err := (&Injector{}).Start(t.Context(), run, Injected{Program: "/agent", Dir: "/"}, c.want)
		if err != nil || got.Port != c.port || got.Egress != c.egress || got.Redirect != c.redirect {
			t.Errorf("%q, wanted %+v: %+v, %v", c.stdout, c.want, got, err)
		}
	}
}

// Two servers may find the same container without an agent.
func TestTwoServersInjectOneAgent(t *testing.T) {
	in, container := newInjector(t)
	want := Injection{Incarnation: "same"}
	var wg sync.WaitGroup
	var at Injected
	for i := range 6 {
		wg.Go(func() {
			got, err := in.Inject(t.Context(), container.run, want)
			if err != nil {
				t.Errorf("injection %d: %v", i, err)
			}
			if i == 0 {
				at = got
			}
		})
	}
	wg.Wait()
	answers(t, at, "same")
	count := 0
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range lines {
		data, _ := os.ReadFile(file)
		if bytes.Contains(data, []byte("serve")) && bytes.Contains(data, []byte(at.Dir)) {
			count++
		}
	}
	if count != 1 {
		t.Errorf("%d agents run", count)
	}
	left, _ := filepath.Glob(filepath.Join(at.Dir, "agent-*.*"))
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestInjectWhatArrivesBrokenIsNotRun(t *testing.T) {
	for _, without := range [][]string{nil, {"sh"}} {
		in, container := newInjector(t)
		container.without, container.breakInput = without, true
		at, err := in.Inject(t.Context(), container.run, Injection{Incarnation: "x"})
		if err == nil || !strings.Contains(err.Error(), "did not arrive whole") {
			t.Errorf("without %v: %v", without, err)
		}
		if left, _ := filepath.Glob(filepath.Join(at.Dir, "agent-*")); len(left) > 0 {
			t.Errorf("without %v, left behind: %v", without, left)
		}
		if _, err := in.Inject(t.Context(), container.run, Injection{Incarnation: "x"}); err != nil {
			t.Errorf("without %v, the second time: %v", without, err)
		}
	}
}

// A file under the agent's name that is not the agent is put in anew.
func TestInjectOverABrokenFile(t *testing.T) {
	in, container := newInjector(t)
	agent, err := in.Agent("amd64")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(in.dirs[0], injectDir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, agentName(in.sum("amd64", agent))), []byte("not a program"), 0o700); err != nil {
		t.Fatal(err)
	}
	at, err := in.Inject(t.Context(), container.run, Injection{Incarnation: "x"})
	if err != nil {
		t.Fatal(err)
	}
	answers(t, at, "x")
}

func TestInjectFindsAPlaceThatWillDo(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a file system noexec")
	}
	noexec := t.TempDir()
	if err := syscall.Mount("tmpfs", noexec, "tmpfs", syscall.MS_NOEXEC, ""); err != nil {
		t.Skipf("cannot mount: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(noexec, syscall.MNT_DETACH) })
	good := t.TempDir()
	for _, without := range [][]string{nil, {"sh"}} {
		in, container := newInjector(t, "/no-such-directory", "/proc", noexec, good)
		container.without = without
		at, err := in.Inject(t.Context(), container.run, Injection{Incarnation: "x"})
		if err != nil || at.Dir != filepath.Join(good, injectDir) {
			t.Errorf("without %v: %+v, %v", without, at, err)
		}
		// With no good place, not even $HOME, the error says what is wrong with
		// each and what cures it.
		in.dirs, container.home = []string{"/proc", noexec}, "/proc"
		_, err = in.Inject(t.Context(), container.run, Injection{Incarnation: "x", Container: "main", Where: "ns/pod"})
		if !errors.Is(err, providers.ErrAgentCannotStart) {
			t.Fatalf("without %v: %v", without, err)
		}
		for _, part := range []string{`container "main" of ns/pod`, "/proc: ", noexec + ": mounted noexec", "mountPath: /sandgate", "emptyDir: {}"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("without %v: %q is not in %q", without, part, err)
			}
		}
	}
}

func TestInjectWithoutAnyReader(t *testing.T) {
	in, container := newInjector(t)
	container.without = []string{"sh", "python3", "tar", "/sandgate/sandgate-agent"}
	_, err := in.Inject(t.Context(), container.run, Injection{Incarnation: "x", Container: "main", Where: "ns/pod"})
	if !errors.Is(err, providers.ErrAgentCannotStart) {
		t.Fatal(err)
	}
	for _, part := range []string{"none of sh, python3 and tar", "initContainers:", "install, /sandgate", "emptyDir: {}"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in %q", part, err)
		}
	}
}

func TestInjectStopsWithItsContext(t *testing.T) {
	in, container := newInjector(t)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := in.Inject(ctx, container.run, Injection{Incarnation: "x"}); err == nil {
		t.Error("it went on")
	}
}
