package spawn

import (
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Clone3 is refused to whoever differs from the key in one bit, and nothing else is.
func TestClone3NeedsTheKey(t *testing.T) {
	key := [2]uint64{0x0123456789abcdef, 0xfedcba9876543210}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // for ever: the thread ends with its filter
		if err := filterClone3(key); err != nil {
			t.Error(err)
			return
		}
		// Of size 0 it is invalid, so nothing is started.
		clone3 := func(number uintptr, key [2]uint64) syscall.Errno {
			_, _, errno := syscall.RawSyscall6(number, 0, 0, uintptr(key[0]), uintptr(key[1]), 0, 0)
			return errno
		}
		if errno := clone3(unix.SYS_CLONE3, key); errno != unix.EINVAL {
			t.Errorf("with the key: %v", errno)
		}
		for bit := range 128 {
			wrong := key
			wrong[bit/64] ^= 1 << (bit % 64)
			if errno := clone3(unix.SYS_CLONE3, wrong); errno != unix.ENOSYS {
				t.Errorf("with another bit %d: %v", bit, errno)
			}
		}
		for _, wrong := range [][2]uint64{{}, {key[0], 0}, {0, key[1]}, {key[1], key[0]}, {^key[0], ^key[1]}} {
			if errno := clone3(unix.SYS_CLONE3, wrong); errno != unix.ENOSYS {
				t.Errorf("with %x: %v", wrong, errno)
			}
			if errno := clone3(unix.SYS_CLONE3|x32, wrong); errno != unix.ENOSYS {
				t.Errorf("of x32, with %x: %v", wrong, errno)
			}
		}
		if pid, _, errno := syscall.RawSyscall(unix.SYS_GETPID, 0, 0, 0); int(pid) != unix.Getpid() || errno != 0 {
			t.Errorf("getpid: %d, %v", pid, errno)
		}
	}()
	<-ended
}
