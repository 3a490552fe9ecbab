package spawn

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrNoNotifications is returned by NotifyConnects if the kernel has no notifications
// that a signal can't interrupt (Linux 5.19), or they are of no use.
var ErrNoNotifications = errors.New("the kernel cannot notify of system calls")

// Connect is an attempt of a command to connect, or to send a datagram to an address.
// The thread that made it waits in the kernel until Continue.
type Connect struct {
	// Thread is its id, as the agent sees it; 0 if the agent does not see it.
	Thread uint32
	// Address and Length are where the thread's memory has the socket address.
	Address, Length uint64
	id              uint64
}

// Connects is where the kernel reports the connects of all commands. It must be read
// as long as the agent lives: while nobody answers, commands wait, and once it is
// closed, their connects fail.
type Connects struct{ file *os.File }

// NotifyConnects makes the kernel report each connect of commands that start from now
// on, and of their descendants, and each sendto with an address. It must be called at
// most once. The agent's own are not reported. Programs can bypass it, by io_uring for
// example.
func NotifyConnects() (*Connects, error) {
	// Scopes from 2 on let nobody without privileges read the memory of programs.
	if scope, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope"); err == nil && len(scope) > 0 && scope[0] >= '2' {
		return nil, fmt.Errorf("%w: kernel.yama.ptrace_scope is %c", ErrNoNotifications, scope[0])
	}
	fd := -1
	err := onParent(func() (err error) {
		fd, err = filterConnects()
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil { // for the runtime's poller
		return nil, errors.Join(err, unix.Close(fd))
	}
	return &Connects{file: os.NewFile(uintptr(fd), "connects")}, nil
}

// filterConnects sets the filter for the calling thread and returns its descriptor.
func filterConnects() (int, error) {
	code := connectCode()
	program := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	// Without WAIT_KILLABLE_RECV a signal handler could run, and use the memory again,
	// while the agent writes the address.
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV | unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW
	set := func() (uintptr, syscall.Errno) {
		fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&program)))
		return fd, errno
	}
	fd, errno := set()
	if errno == unix.EACCES { // neither a privilege nor no_new_privs
		if err := forgoPrivileges(); err != nil {
			return -1, err
		}
		fd, errno = set()
	}
	runtime.KeepAlive(code)
	switch errno {
	case 0:
		return int(fd), nil
	case unix.EINVAL, unix.ENOSYS:
		return -1, fmt.Errorf("%w: %w", ErrNoNotifications, errno)
	default: // EBUSY: there is such a filter above the agent
		return -1, fmt.Errorf("filter connects: %w", errno)
	}
}

// connectCode returns the filter's code. Calls of another ABI are allowed unseen.
func connectCode() []unix.SockFilter {
	const number, arch, address = 0, 4, 16 + 4*8 // offsets in seccomp_data; of sendto's fifth argument
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	equal := func(value uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jt: yes, Jf: no}
	}
	result := func(value uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: value}
	}
	return []unix.SockFilter{
		load(arch),
		equal(nativeArch(), 0, 7),
		load(number),
		equal(unix.SYS_CONNECT, 6, 0),
		equal(unix.SYS_SENDTO, 0, 4),
		load(address),
		equal(0, 0, 3),
		load(address + 4),
		equal(0, 0, 1),
		result(unix.SECCOMP_RET_ALLOW),
		result(unix.SECCOMP_RET_USER_NOTIF),
	}
}

func nativeArch() uint32 {
	if runtime.GOARCH == "arm64" {
		return unix.AUDIT_ARCH_AARCH64
	}
	return unix.AUDIT_ARCH_X86_64
}

// notification is the kernel's struct seccomp_notif, and answer its
// seccomp_notif_resp.
type (
	notification struct {
		id         uint64
		pid, flags uint32
		number     int32
		arch       uint32
		ip         uint64
		args       [6]uint64
	}
	answer struct {
		id    uint64
		value int64
		error int32
		flags uint32
	}
)

// Next returns the next connect. While it waits it holds no thread.
func (c *Connects) Next() (Connect, error) {
	raw, err := c.file.SyscallConn()
	if err != nil {
		return Connect{}, err
	}
	var n notification
	var failed syscall.Errno
	err = raw.Read(func(fd uintptr) bool {
		for {
			// The call below would wait, whatever the descriptor's mode.
			ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			if ready == 0 && err == nil {
				return false
			}
			n = notification{}
			_, _, failed = unix.Syscall(unix.SYS_IOCTL, fd, unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n)))
			if failed != unix.EINTR && failed != unix.ENOENT { // ENOENT: the thread was killed
				return true
			}
		}
	})
	if err == nil && failed != 0 {
		err = failed
	}
	if err != nil {
		return Connect{}, fmt.Errorf("receive a notification: %w", err)
	}
	out := Connect{Thread: n.pid, Address: n.args[1], Length: n.args[2], id: n.id}
	if n.number == unix.SYS_SENDTO {
		out.Address, out.Length = n.args[4], n.args[5]
	}
	return out, nil
}

// Waits reports whether the thread still waits. If not, its id may be another one's.
func (c *Connects) Waits(one Connect) bool {
	return c.call(unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&one.id)) == nil
}

// Continue lets the kernel do what the thread asked for. It does nothing if the thread
// was killed.
func (c *Connects) Continue(one Connect) error {
	a := answer{id: one.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	err := c.call(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&a))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func (c *Connects) call(request uintptr, data unsafe.Pointer) error {
	raw, err := c.file.SyscallConn()
	if err != nil {
		return err
	}
	var errno syscall.Errno
	err = raw.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(data))
	})
	if err == nil && errno != 0 {
		err = errno
	}
	return err
}
