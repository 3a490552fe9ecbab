package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"sync"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/streaming/sealed"
)

// Runner runs one command in one container, as Executor.Run does. The error
// wraps errNoExecutable when the container has no such program.
type Runner func(ctx context.Context, command []string, stdin io.Reader) (Result, error)

// In returns a Runner for one container.
func (e *Executor) In(at Container) Runner {
	return func(ctx context.Context, command []string, stdin io.Reader) (Result, error) {
		r, err := e.Run(ctx, at, command, stdin)
		if err != nil && notRunnable(err) {
			err = fmt.Errorf("%w: %w", errNoExecutable, err)
		}
		return r, err
	}
}

var errNoExecutable = errors.New("no such executable in the container")

// notRunnable tells that the runtime found no such program, or one that the
// kernel does not take. Kubernetes has only words for it.
func notRunnable(err error) bool {
	if strings.Contains(err.Error(), "namespace path") {
		return false // the container has just ended, and what is not there is a file of /proc
	}
	for _, words := range []string{"executable file not found", "no such file or directory", "exec format error", "not a directory"} {
		if strings.Contains(err.Error(), words) {
			return true
		}
	}
	return false
}

// Injector puts the agent into running containers whose spec is not ours. It is
// safe for concurrent use, also by several processes on one container.
type Injector struct {
	// Agent returns the agent's executable for an architecture in Go's words.
	Agent func(arch string) ([]byte, error)

	// dirs are what is tried besides $HOME and the working directory. Empty:
	// candidates.
	dirs []string

	mu   sync.Mutex
	sums map[string]string
}

// Injection is an agent that is to run in a container.
type Injection struct {
	// Incarnation is what the agent says it is: a-z, 0-9 and "-" only.
	Incarnation string
	// Generation counts the agents of one container; a later one ends those
	// before it, an earlier one is refused.
	Generation int
	// Workdir is where its commands start. Empty: the container's own.
	Workdir string
	// Container and Where name the container and its pod in errors.
	Container, Where string
	// Port is where the agent takes connections from whoever knows Secret. 0:
	// nowhere.
	Port   int32
	Secret sealed.Secret
}

// Injected is where an agent is in a container.
type Injected struct {
	// Program is the agent's executable.
	Program string `json:"program"`
	// Dir is its directory, in which its sockets are.
	Dir string `json:"dir"`
	// Sum is the executable's SHA-256; empty when it was in the image already.
	Sum string `json:"sum,omitempty"`
	// Port is where the agent takes connections at the pod's address; 0: nowhere.
	Port int32 `json:"port,omitempty"`
}

// Connect returns the command that joins its standard input and output to the
// agent. It does not wait: Inject returned when the agent listened.
func (i Injected) Connect(incarnation string) []string {
	return []string{i.Program, "connect", "--wait", "0s", "--to", "unix://" + path.Join(i.Dir, incarnation+".sock")}
}

const (
	// preinstalled is where a template or an image may have put the agent.
	preinstalled    = "/sandgate"
	agentProgram    = "sandgate-agent"
	injectDir       = ".sandgate"
	maxComplaint    = 1 << 10
	codeNotRunnable = 126
	codeNotFound    = 127
	codeKilled      = 137
)

// candidates are the directories that are tried, in this order; then $HOME and
// the working directory.
var candidates = []string{preinstalled, "/tmp", "/dev/shm", "/var/tmp"}

// Inject puts the agent in and starts it. It returns when the agent listens; an
// agent of that incarnation that runs already is left as it is, and one of an
// earlier generation is ended. The error wraps providers.ErrAgentCannotStart
// when the container cannot take an agent, and says what would let it.
func (in *Injector) Inject(ctx context.Context, run Runner, want Injection) (Injected, error) {
	for _, w := range []way{shellWay{}, pythonWay{}, tarWay{}} {
		got, err := in.by(ctx, w, run, want)
		if !errors.Is(err, errNoExecutable) {
			return got, err
		}
	}
	// Nothing in the image can write a file; the agent may be there already.
	got, err := in.Start(ctx, run, Injected{Program: path.Join(preinstalled, agentProgram), Dir: preinstalled}, want)
	if errors.Is(err, errNoExecutable) {
		return Injected{}, noReader(want)
	}
	return got, err
}

// Start starts an agent that was put in before, as Inject does.
func (in *Injector) Start(ctx context.Context, run Runner, at Injected, want Injection) (Injected, error) {
	var stdin io.Reader
	if want.Port > 0 {
		// Never an argument, which all processes of a container can see.
		stdin = strings.NewReader(want.Secret.Text())
	}
	r, err := run(ctx, startCommand(at, want), stdin)
	at.Port = 0
	if strings.HasPrefix(string(r.Stdout), "tcp ") {
		// An agent that ran already may have been started without.
		at.Port = want.Port
	}
	return at, started(r, err, want)
}

func startCommand(at Injected, want Injection) []string {
	args := []string{at.Program, "start", "--dir", at.Dir, "--incarnation", want.Incarnation}
	if want.Generation > 0 {
		args = append(args, "--generation", strconv.Itoa(want.Generation))
	}
	if want.Workdir != "" {
		args = append(args, "--workdir", want.Workdir)
	}
	if at.Sum != "" {
		args = append(args, "--sha256", at.Sum)
	}
	if want.Port > 0 {
		args = append(args, "--listen-tcp", ListenAddress(want.Port))
	}
	return args
}

func started(r Result, err error, want Injection) error {
	switch {
	case err != nil:
		return err
	case r.Code == codeNotFound || r.Code == codeNotRunnable:
		return fmt.Errorf("start the agent: %w: %s", errNoExecutable, complaint(r.Stderr))
	case r.Code == codeKilled && len(r.Stderr) == 0:
		return fmt.Errorf("container %q of %s: %w: it was cut short", want.Container, want.Where, providers.ErrAgentCannotStart)
	case r.Code != 0:
		return fmt.Errorf("container %q of %s: %w: %s", want.Container, want.Where, providers.ErrAgentCannotStart, complaint(r.Stderr))
	}
	return nil
}

// way is a means of writing a file that the image offers.
type way interface {
	// probe finds out what the container is like. The error wraps
	// errNoExecutable when the image does not offer this way.
	probe(ctx context.Context, run Runner, dirs []string) (site, error)
	// put writes the agent and starts it.
	put(ctx context.Context, run Runner, at Injected, agent []byte, start []string) (Result, error)
}

// site is what a container looks like to the injector.
type site struct {
	arch  string
	dir   string // the directory to use; empty: none will do
	have  map[string]bool
	ready bool     // the agent is in the image already
	tried []string // each directory that will not do, with the reason
}

func (in *Injector) by(ctx context.Context, w way, run Runner, want Injection) (Injected, error) {
	dirs := in.dirs
	if len(dirs) == 0 {
		dirs = candidates
	}
	s, err := w.probe(ctx, run, dirs)
	if err != nil {
		return Injected{}, err
	}
	if s.dir == "" {
		return Injected{}, noDirectory(want, s.tried)
	}
	at := Injected{Dir: s.dir}
	if s.ready {
		at.Program = path.Join(preinstalled, agentProgram)
		at, err := in.Start(ctx, run, at, want)
		return at, final(err)
	}
	agent, err := in.Agent(s.arch)
	if err != nil {
		return Injected{}, fmt.Errorf("%w: %w", providers.ErrAgentCannotStart, err)
	}
	at.Sum = in.sum(s.arch, agent)
	at.Program = path.Join(s.dir, agentName(at.Sum))
	if s.have[path.Base(at.Program)] {
		there, err := in.Start(ctx, run, at, want)
		if err == nil || ctx.Err() != nil {
			return there, err
		}
		// What is there under its name may be broken: it is put in anew, once.
	}
	if want.Port == 0 {
		r, err := w.put(ctx, run, at, agent, startCommand(at, want))
		return at, final(started(r, err, want))
	}
	// The input that brings the agent cannot bring its secret as well: what reads
	// it may read too much.
	r, err := w.put(ctx, run, at, agent, []string{at.Program, "version"})
	if err = started(r, err, want); err == nil {
		at, err = in.Start(ctx, run, at, want)
	}
	return at, final(err)
}

// final is for an executable that is there and cannot be run all the same: no
// other way of putting it there will do better.
func final(err error) error {
	if errors.Is(err, errNoExecutable) {
		return fmt.Errorf("%w: %s", providers.ErrAgentCannotStart, err.Error())
	}
	return err
}

func agentName(sum string) string { return "agent-" + sum[:16] }

// Sum returns the SHA-256 of the agent for an architecture.
func (in *Injector) Sum(arch string) (string, error) {
	agent, err := in.Agent(arch)
	if err != nil {
		return "", err
	}
	return in.sum(arch, agent), nil
}

func (in *Injector) sum(arch string, agent []byte) string {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.sums == nil {
		in.sums = make(map[string]string)
	}
	if in.sums[arch] == "" {
		sum := sha256.Sum256(agent)
		in.sums[arch] = hex.EncodeToString(sum[:])
	}
	return in.sums[arch]
}

// goArch translates what "uname -m" says.
func goArch(machine string) string {
	switch m := strings.TrimSpace(machine); m {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	default:
		return m
	}
}

func complaint(said []byte) string {
	s := strings.TrimSpace(string(said))
	if len(s) > maxComplaint {
		s = "… " + strings.ToValidUTF8(s[len(s)-maxComplaint:], "")
	}
	return s
}

func noReader(want Injection) error {
	return fmt.Errorf(`container %q of %s: %w: its image has none of sh, python3 and tar to write the agent with, and no %s/%s
add a volume to the pod's spec into which an init container puts the agent:
%s`, want.Container, want.Where, providers.ErrAgentCannotStart, preinstalled, agentProgram, patchWithInit(want.Container))
}

func noDirectory(want Injection, tried []string) error {
	return fmt.Errorf(`container %q of %s: %w: it has no directory that is writable and allows execution (%s)
add one to the pod's spec:
%s`, want.Container, want.Where, providers.ErrAgentCannotStart, strings.Join(tried, "; "), patch(want.Container))
}

// patch is what cures a container without a place for the agent.
func patch(container string) string {
	return fmt.Sprintf(`  containers:
  - name: %s
    volumeMounts:
    - {name: sandgate, mountPath: %s}
  volumes:
  - {name: sandgate, emptyDir: {}}`, container, preinstalled)
}

// patchWithInit is what cures an image that has nothing to write with.
func patchWithInit(container string) string {
	return fmt.Sprintf(`  initContainers:
  - name: sandgate-agent
    image: IMAGE-WITH-THE-AGENT
    command: [/%s, install, %s]
    volumeMounts:
    - {name: sandgate, mountPath: %s}
`, agentProgram, preinstalled, preinstalled) + patch(container)
}

// NoExecutable reports whether an error of a Runner says that the container has
// no such program.
func NoExecutable(err error) bool { return errors.Is(err, errNoExecutable) }
