package process

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/spawn"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

// pipeSize is requested for a pipe of output once a read of it fills its buffer. The
// kernel may give less: it bounds the pages of all pipes of a user. A short command
// starts faster, and takes nothing of that bound.
const pipeSize = 1 << 20

// stdio is the descriptors of one command while it starts.
type stdio struct {
	child  []int // closed once the command has its own copies
	parent []int // closed only if the start fails
	files  [4]int
	inputs []input
	stdin  int // the agent's end, -1 if none
}

func newStdio() *stdio { return &stdio{files: [4]int{-1, -1, -1, -1}, stdin: -1} }

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// open makes the command's standard descriptors.
func (f *stdio) open(r *sandboxv1.ExecuteRequest) error {
	if size := r.GetTerminal(); size != nil {
		return f.openTerminal(size)
	}
	if len(r.GetStdin()) > 0 || r.GetStdinOpen() {
		read, write, err := pipe()
		if err != nil {
			return err
		}
		f.child, f.parent = append(f.child, read), append(f.parent, write)
		f.files[0], f.stdin = read, write
		_ = unix.SetNonblock(write, true)
	} else {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("%w: /dev/null: %w", spawn.ErrSetup, err)
		}
		f.child, f.files[0] = append(f.child, fd), fd
	}
	streams := []streaming.Stream{streaming.Stdout, streaming.Stderr}
	if r.GetOutputMode() == sandboxv1.OutputMode_OUTPUT_MODE_MERGED {
		streams = streams[:1]
	}
	for i, s := range streams {
		read, write, err := pipe()
		if err != nil {
			return err
		}
		f.child, f.parent = append(f.child, write), append(f.parent, read)
		_ = unix.SetNonblock(read, true)
		f.files[1+i] = write
		f.inputs = append(f.inputs, input{fd: read, stream: s})
	}
	if len(streams) == 1 {
		f.files[2] = f.files[1]
	}
	return nil
}

func pipe() (read, write int, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return -1, -1, fmt.Errorf("%w: pipe: %w", spawn.ErrSetup, err)
	}
	return p[0], p[1], nil
}

// openTerminal makes a terminal. The pump and the writers of input have one
// descriptor each.
func (f *stdio) openTerminal(size *sandboxv1.TerminalSize) error {
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
	f.files[0], f.files[1], f.files[2] = slave, slave, slave
	f.inputs = []input{{fd: master, stream: streaming.Terminal}}
	return nil
}
