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

// notRunnable reports whether the runtime found no such program, or one that the
// kernel cannot execute. Kubernetes reports both in the message only.
func notRunnable(err error) bool {
	if strings.Contains(err.Error(), "namespace path") {
		return false // the container has just ended: the missing file is in /proc
	}
	for _, text := range []string{"executable file not found", "no such file or directory", "exec format error", "not a directory"} {
		if strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}

// Injector installs the agent in running containers whose pods Sandgate did not
// create. It is safe for concurrent use, also by several processes on one
// container.
type Injector struct {
	// Agent returns the agent's executable for a GOARCH.
	Agent func(arch string) ([]byte, error)

	// dirs are tried before $HOME and the working directory. Empty: candidates.
	dirs []string

	mu   sync.Mutex
	sums map[string]string
}

// Injection describes an agent that is to run in a container.
type Injection struct {
	// Incarnation is what the agent reports in Hello: a-z, 0-9 and "-" only.
	Incarnation string
	// Generation counts the agents of one container. A later one stops its
	// predecessors, an earlier one is rejected.
	Generation int
	// Workdir is the directory of its commands. Empty: the container's own.
	Workdir string
	// Container and Where name the container and its pod in errors.
	Container, Where string
	// Port is where the agent takes connections from whoever knows Secret. 0:
	// nowhere.
	Port   int32
	Secret sealed.Secret
	// Egress opens the agent's proxy and name server, for the network mode PROXY.
	Egress bool
	// Redirect has the agent redirect connects of programs that ignore the proxy.
	Redirect bool
}

// Injected is the location of an agent in a container.
type Injected struct {
	// Program is the agent's executable.
	Program string `json:"program"`
	// Dir is the directory of its sockets.
	Dir string `json:"dir"`
	// Sum is the executable's SHA-256; empty if the image contains it.
	Sum string `json:"sum,omitempty"`
	// Port is where the agent takes connections at the pod's address; 0: nowhere.
	Port int32 `json:"port,omitempty"`
	// Egress is true if the agent has its proxy.
	Egress bool `json:"egress,omitempty"`
	// Redirect is true if the agent redirects connects of programs.
	Redirect bool `json:"redirect,omitempty"`
}

// Connect returns the command that joins its standard input and output to the
// agent. It does not wait: the agent listened when Inject returned.
func (i Injected) Connect(incarnation string) []string {
	return []string{i.Program, "connect", "--wait", "0s", "--to", "unix://" + path.Join(i.Dir, incarnation+".sock")}
}

const (
	// preinstalled is where a template or an image may provide the agent.
	preinstalled    = "/sandgate"
	agentProgram    = "sandgate-agent"
	injectDir       = ".sandgate"
	maxComplaint    = 1 << 10
	codeNotRunnable = 126
	codeNotFound    = 127
	codeKilled      = 137
)

// candidates are the directories to try, in this order, before $HOME and the
// working directory.
var candidates = []string{preinstalled, "/tmp", "/dev/shm", "/var/tmp"}

// Inject installs the agent, starts it, and returns when it listens. A running
// agent of the same incarnation stays, and one of an earlier generation is
// stopped. If the container cannot run an agent, the error wraps
// providers.ErrAgentCannotStart and contains the remedy.
func (in *Injector) Inject(ctx context.Context, run Runner, want Injection) (Injected, error) {
	for _, with := range []installer{shellInstaller{}, pythonInstaller{}, tarInstaller{}} {
		got, err := in.install(ctx, with, run, want)
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

// Start starts an installed agent, as Inject does.
func (in *Injector) Start(ctx context.Context, run Runner, at Injected, want Injection) (Injected, error) {
	var stdin io.Reader
	if want.Port > 0 {
		// Never an argument: all processes of the container could read it.
		stdin = strings.NewReader(want.Secret.Text())
	}
	r, err := run(ctx, startCommand(at, want), stdin)
	return at.startedWith(r, want), started(r, err, want)
}

// startedWith sets what the agent was started with, as "start" prints it. An agent
// that ran already may have been started with something else than wanted.
func (i Injected) startedWith(r Result, want Injection) Injected {
	i.Port, i.Egress, i.Redirect = 0, false, false
	for line := range strings.Lines(string(r.Stdout)) {
		switch word, _, _ := strings.Cut(strings.TrimSpace(line), " "); word {
		case "tcp":
			i.Port = want.Port
		case "egress":
			i.Egress = true
		case "redirect":
			i.Redirect = true
		}
	}
	return i
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
	if want.Egress {
		args = append(args, "--egress")
	}
	if want.Redirect {
		args = append(args, "--redirect")
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
		return fmt.Errorf("container %q of %s: %w: its start was interrupted", want.Container, want.Where, providers.ErrAgentCannotStart)
	case r.Code != 0:
		return fmt.Errorf("container %q of %s: %w: %s", want.Container, want.Where, providers.ErrAgentCannotStart, complaint(r.Stderr))
	}
	return nil
}

// installer writes the agent with a program of the image.
type installer interface {
	// probe inspects the container. The error wraps errNoExecutable if the image
	// does not have the program.
	probe(ctx context.Context, run Runner, dirs []string) (site, error)
	// put writes the agent and starts it.
	put(ctx context.Context, run Runner, at Injected, agent []byte, start []string) (Result, error)
}

// site is what the injector knows of a container.
type site struct {
	arch  string
	dir   string // the directory to use; empty: none is usable
	have  map[string]bool
	ready bool     // the agent is in the image already
	tried []string // each unusable directory, with the reason
}

func (in *Injector) install(ctx context.Context, with installer, run Runner, want Injection) (Injected, error) {
	dirs := in.dirs
	if len(dirs) == 0 {
		dirs = candidates
	}
	s, err := with.probe(ctx, run, dirs)
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
		// The file of that name may be broken: it is written again, once.
	}
	if want.Port == 0 {
		r, err := with.put(ctx, run, at, agent, startCommand(at, want))
		return at.startedWith(r, want), final(started(r, err, want))
	}
	// The secret cannot follow the agent on the same input: the program that reads
	// the agent may read beyond its end.
	r, err := with.put(ctx, run, at, agent, []string{at.Program, "version"})
	if err = started(r, err, want); err == nil {
		at, err = in.Start(ctx, run, at, want)
	}
	return at, final(err)
}

// final marks an executable that exists and cannot be run: no other installer can
// do better.
func final(err error) error {
	if errors.Is(err, errNoExecutable) {
		return fmt.Errorf("%w: %s", providers.ErrAgentCannotStart, err.Error())
	}
	return err
}

func agentName(sum string) string { return "agent-" + sum[:16] }

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

// goArch returns the GOARCH of a machine name of "uname -m".
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

func complaint(output []byte) string {
	s := strings.TrimSpace(string(output))
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

// patch is the remedy for a container without a directory for the agent.
func patch(container string) string {
	return fmt.Sprintf(`  containers:
  - name: %s
    volumeMounts:
    - {name: sandgate, mountPath: %s}
  volumes:
  - {name: sandgate, emptyDir: {}}`, container, preinstalled)
}

// patchWithInit is the remedy for an image without a program to write with.
func patchWithInit(container string) string {
	return fmt.Sprintf(`  initContainers:
  - name: sandgate-agent
    image: IMAGE-WITH-THE-AGENT
    command: [/%s, install, %s]
    volumeMounts:
    - {name: sandgate, mountPath: %s}
`, agentProgram, preinstalled, preinstalled) + patch(container)
}

// NoExecutable reports whether an error of a Runner is that the container has no
// such program.
func NoExecutable(err error) bool { return errors.Is(err, errNoExecutable) }
