package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent"
	"github.com/sandgate/sandgate/agent/process"
	"github.com/sandgate/sandgate/agent/spawn"
	"github.com/sandgate/sandgate/agent/threads"
)

// defaultSocket is an abstract socket: it needs no writable directory.
const defaultSocket = "unix:@sandgate-agent"

// The agent shares the sandbox's memory limit with the commands.
const (
	memoryLimit = 48 << 20
	gcPercent   = 50
)

type addresses []string

func (a *addresses) String() string     { return strings.Join(*a, ",") }
func (a *addresses) Set(v string) error { *a = append(*a, v); return nil }

func serve(args []string, stderr io.Writer) error {
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	var listen addresses
	flags.Var(&listen, "listen", "")
	fd := flags.Int("listen-fd", -1, "")
	tcp := flags.String("listen-tcp", "", "")
	var cfg agent.Config
	flags.StringVar(&cfg.Incarnation, "incarnation", "", "")
	flags.StringVar(&cfg.Workdir, "workdir", "", "")
	flags.StringVar(&cfg.Cgroup, "cgroup", "", "")
	flags.StringVar(&cfg.StateDir, "state-dir", "", "")
	flags.BoolVar(&cfg.Egress, "egress", false, "")
	flags.BoolVar(&cfg.Redirect, "redirect", false, "")
	refuse := flags.Bool("refuse-clone3", false, "")
	flags.Var(rlimits{}, "rlimit", "")
	if err := flags.Parse(args); err != nil {
		return errors.Join(errUsage, err)
	}
	secret, unrestricted, err := prepareProcess(*refuse, cfg)
	if err != nil {
		return err
	}
	var listeners []net.Listener
	if *tcp != "" {
		// Before the sockets, so that it exists once a socket does.
		l, err := listenTCP(*tcp, secret)
		if err != nil {
			return err
		}
		listeners = append(listeners, l)
	}
	cfg.Version = version
	cfg.Reap = true
	cfg.Log = slog.New(slog.NewTextHandler(stderr, nil))
	if unrestricted != nil {
		cfg.Log.Info("commands have no Landlock domain: they can signal the agent", "error", unrestricted)
	}
	a, err := agent.New(cfg)
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	// Last: who can connect finds all that the agent listens at.
	sockets, err := listenAll(listen, *fd)
	if err != nil {
		a.Close()
		return err
	}
	listeners = append(listeners, sockets...)
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	// The signals that a command could send and that would end the program. They are
	// caught and not ignored, so that commands start with the default action.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGQUIT, unix.SIGABRT, unix.SIGTRAP, unix.SIGSYS,
		unix.SIGSTKFLT, unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGXCPU, unix.SIGXFSZ)
	defer stop()
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { failed <- a.Serve(l) }()
	}
	cfg.Log.Info("serving", "version", version, "listeners", len(listeners), "kill_mode", a.KillMode().String())
	if flags.NArg() > 0 {
		if err := runMain(ctx, a, flags.Args()); err != nil {
			a.Close()
			return err
		}
	}
	select {
	case <-ctx.Done():
	case <-a.Stopped():
	case err = <-failed:
	}
	a.Close()
	return err
}

// prepareProcess bounds what this process takes and what its commands may do to it. It
// takes the agent's secret from the environment. unrestricted says why commands are in
// no Landlock domain.
func prepareProcess(refuseClone3 bool, cfg agent.Config) (secret string, unrestricted, err error) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	// Commands must not inherit the agent's descriptors, and descriptors 0 to 2 must be
	// open.
	spawn.SetCloseOnExec()
	if err := spawn.Harden(); err != nil {
		return "", nil, err
	}
	secret = takeSecret()
	if refuseClone3 {
		if err := spawn.RefuseClone3(); err != nil {
			return "", nil, err
		}
	}
	openStandard()
	unix.Umask(0o022)
	unrestricted = process.RestrictCommands(cfg.Cgroup, cfg.StateDir)
	threads.Reserve()
	return secret, unrestricted, nil
}

func listenAll(list []string, fd int) ([]net.Listener, error) {
	if len(list) == 0 && fd < 0 {
		list = []string{defaultSocket}
	}
	var all []net.Listener
	if fd >= 0 {
		f := os.NewFile(uintptr(fd), "listener")
		l, err := net.FileListener(f)
		if err != nil {
			return nil, fmt.Errorf("listen on descriptor %d: %w", fd, err)
		}
		_ = f.Close()
		all = append(all, l)
	}
	for _, a := range list {
		path, err := socketPath(a)
		if err != nil {
			return nil, err
		}
		if !strings.HasPrefix(path, "@") {
			// A socket that an earlier agent left behind.
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, fmt.Errorf("remove old socket: %w", err)
			}
		}
		// Before the socket, so that it exists once the socket does. Without it, for
		// example because the name is too long, connect copies the bytes itself.
		if l, err := listenHandover(path); err == nil {
			all = append(all, l)
		}
		l, err := net.Listen("unix", path)
		if err != nil {
			return nil, fmt.Errorf("listen: %w", err)
		}
		all = append(all, l)
	}
	return all, nil
}

// socketPath parses unix:///path, unix:/path and unix:@name.
func socketPath(address string) (string, error) {
	rest, ok := strings.CutPrefix(address, "unix:")
	if !ok {
		return "", fmt.Errorf("address %q: must begin with \"unix:\"", address)
	}
	rest = strings.TrimPrefix(rest, "//")
	if len(rest) < 2 || rest[0] != '/' && rest[0] != '@' {
		return "", fmt.Errorf("address %q: needs an absolute path or an @name", address)
	}
	return rest, nil
}

func openStandard() {
	for {
		fd, err := unix.Open("/dev/null", unix.O_RDWR, 0)
		if err != nil {
			return
		}
		if fd > 2 {
			_ = unix.Close(fd)
			return
		}
	}
}
