package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/spawn"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

const (
	// maxArg is what the kernel takes as one argument, its NUL included.
	maxArg = 128 << 10
	// pipeSize is asked for every pipe of output; the kernel may give less.
	pipeSize = 1 << 20
	// oomScore of commands: they go before the agent does.
	oomScore = 500
	// pipeRoom is what an empty pipe takes without waiting.
	pipeRoom = 4 << 10
)

// filesOf are the descriptors of one command while it is started.
type filesOf struct {
	child  []int // closed once the command has its own copies
	parent []int // closed only when the start fails
	std    [4]int
	inputs []input
	stdin  int // our end, -1 without
}

func (f *filesOf) closeAll(list []int) {
	for _, fd := range list {
		_ = unix.Close(fd)
	}
}

// startCommand starts what the request says; c is filled in. On an error
// nothing is left behind.
func (a *Agent) startCommand(ctx context.Context, c *command, env *agentv1.ExecuteRequest) error {
	r := env.GetRequest()
	spec := spawn.Spec{Env: a.environ(r), Dir: r.GetCwd(), Cgroup: -1, OOMScoreAdj: oomScore, Terminal: r.GetTerminal() != nil}
	if spec.Dir == "" {
		spec.Dir = a.cfg.Workdir
	}
	f := &filesOf{std: [4]int{-1, -1, -1, -1}, stdin: -1}
	ok := false // also when this panics
	defer func() {
		f.closeAll(f.child)
		if !ok {
			f.closeAll(f.parent)
		}
	}()
	if err := a.program(&spec, r, f); err != nil {
		return err
	}
	if err := c.openFiles(r, f); err != nil {
		return startError(spec.Path, spec.Dir, err)
	}
	copy(spec.Files[:], f.std[:])

	limit := outputCap(r, env.GetLimits())
	o := streaming.Options{Capacity: env.GetLimits().GetOutputLogBytes(), Dir: a.cfg.StateDir, Budget: a.budget, Max: limit}
	if r.GetDetach() || r.GetOnFull() == sandboxv1.OnFull_ON_FULL_EVICT {
		o.Policy = streaming.Evict
	}
	p, err := newPump(c, f.inputs)
	if err != nil {
		return startError(spec.Path, spec.Dir, err)
	}
	o.Room = p.room
	c.log = streaming.NewLog(o)
	p.log, c.pump = c.log, p
	defer func() {
		if !ok {
			p.abandon()
			c.log.Close()
		}
	}()

	rules, unbound, err := a.writeRules(env)
	if err != nil {
		return err
	}
	if c.unbound = unbound; rules != nil {
		defer func() { _ = rules.Close() }()
		spec.Ruleset = int(rules.Fd()) + 1
	}
	c.ooms, _ = a.oom.read()
	c.refused, _ = a.crowd.refused()
	var group *cgroup
	if a.cgroups != nil {
		if group, err = a.cgroups.take(); err != nil {
			return exhausted(err)
		}
		spec.Cgroup = group.fd
	}
	c.start = time.Now()
	a.reaper.begin()
	c.proc, err = startPatiently(ctx, spec)
	if err != nil {
		a.reaper.abandon()
		if group != nil {
			group.release()
		}
		name := spec.Path
		if argv := r.GetArgv(); argv != nil {
			name = argv.GetArgs()[0]
		}
		return startError(name, spec.Dir, err)
	}
	if group != nil {
		c.tree = group
		a.reaper.own(c.proc.Pid)
		p.watch(c.proc.PidFD, tagLeader)
	} else {
		c.tree = &descent{proc: c.proc, reaper: a.reaper}
		a.reaper.own(c.proc.Supervisor)
		p.watch(c.proc.Reports, tagReports)
	}
	a.running.Add(1)
	if d := budget(r, env.GetLimits()); d > 0 {
		c.timeout = time.AfterFunc(d, func() {
			a.recovery.guard("the kill of a command", func() { c.kill(causeTimeout) })
			c.log.SetPolicy(streaming.Evict)
		})
	}
	c.stdin = newStdin(c.terminal, 0)
	if f.stdin >= 0 {
		c.stdin.file = os.NewFile(uintptr(f.stdin), "stdin")
		c.feed(ctx, r)
	}
	ok = true
	return nil
}

// startPatiently tries again for a moment when there are too many processes:
// those of a command that was just killed may not be reaped yet.
func startPatiently(ctx context.Context, spec spawn.Spec) (*spawn.Process, error) {
	const tries, pause = 20, 25 * time.Millisecond
	for try := 1; ; try++ {
		p, err := spawn.Start(spec)
		if !errors.Is(err, unix.EAGAIN) || try == tries {
			return p, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// program fills in what is executed.
func (a *Agent) program(spec *spawn.Spec, r *sandboxv1.ExecuteRequest, f *filesOf) error {
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
		// The script is in memory and the shell reads it as descriptor 3; with
		// "." rather than as an operand, $0 and standard input are those of -c.
		fd, err := scriptFile(script)
		if err != nil {
			return startError(spec.Path, spec.Dir, err)
		}
		f.child = append(f.child, fd)
		f.std[3] = fd
		script = ". /proc/self/fd/3"
	}
	spec.Argv = []string{spec.Path, "-c", script}
	return nil
}

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

// openFiles makes the command's standard descriptors.
func (c *command) openFiles(r *sandboxv1.ExecuteRequest, f *filesOf) error {
	if size := r.GetTerminal(); size != nil {
		return c.openTerminal(size, f)
	}
	if len(r.GetStdin()) > 0 || r.GetStdinOpen() {
		read, write, err := pipe(0)
		if err != nil {
			return err
		}
		f.child, f.parent = append(f.child, read), append(f.parent, write)
		f.std[0], f.stdin = read, write
		_ = unix.SetNonblock(write, true)
	} else {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("%w: /dev/null: %w", spawn.ErrSetup, err)
		}
		f.child, f.std[0] = append(f.child, fd), fd
	}
	streams := []streaming.Stream{streaming.Stdout, streaming.Stderr}
	if r.GetOutputMode() == sandboxv1.OutputMode_OUTPUT_MODE_MERGED {
		streams = streams[:1]
	}
	for i, s := range streams {
		read, write, err := pipe(pipeSize)
		if err != nil {
			return err
		}
		f.child, f.parent = append(f.child, write), append(f.parent, read)
		_ = unix.SetNonblock(read, true)
		f.std[1+i] = write
		f.inputs = append(f.inputs, input{fd: read, stream: s})
	}
	if len(streams) == 1 {
		f.std[2] = f.std[1]
	}
	return nil
}

func pipe(size int) (read, write int, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return -1, -1, fmt.Errorf("%w: pipe: %w", spawn.ErrSetup, err)
	}
	if size > 0 {
		_, _ = unix.FcntlInt(uintptr(p[0]), unix.F_SETPIPE_SZ, size)
	}
	return p[0], p[1], nil
}

// openTerminal makes a terminal. The pump and the writers of input have a
// descriptor each.
func (c *command) openTerminal(size *sandboxv1.TerminalSize, f *filesOf) error {
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("%w: terminal: %w", spawn.ErrSetup, err)
	}
	f.parent = append(f.parent, master)
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return fmt.Errorf("%w: terminal: %w", spawn.ErrSetup, err)
	}
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, flags)
	slave := int(peer)
	if errno != 0 {
		n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
		if err != nil {
			return fmt.Errorf("%w: terminal: %w", spawn.ErrSetup, errors.Join(errno, err))
		}
		if slave, err = unix.Open(fmt.Sprintf("/dev/pts/%d", n), flags, 0); err != nil {
			return fmt.Errorf("%w: terminal: %w", spawn.ErrSetup, err)
		}
	}
	f.child = append(f.child, slave)
	_ = unix.IoctlSetWinsize(master, unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(size.GetRows()), Col: uint16(size.GetColumns())})
	second, err := unix.FcntlInt(uintptr(master), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%w: terminal: %w", spawn.ErrSetup, err)
	}
	f.parent = append(f.parent, second)
	f.stdin = second
	f.std[0], f.std[1], f.std[2] = slave, slave, slave
	f.inputs = []input{{fd: master, stream: streaming.Terminal}}
	return nil
}

// feed gives the command its first input.
func (c *command) feed(ctx context.Context, r *sandboxv1.ExecuteRequest) {
	data, eof := r.GetStdin(), !r.GetStdinOpen() && !c.terminal
	if len(data) == 0 && !eof {
		return
	}
	if len(data) <= pipeRoom && !c.terminal {
		_, _ = c.stdin.write(ctx, 0, data, eof)
		return
	}
	// The command may never read it; closing the input at its end frees this.
	go c.agent.recovery.guard("a command's first input", func() {
		_, _ = c.stdin.write(context.WithoutCancel(ctx), 0, data, eof)
	})
}
