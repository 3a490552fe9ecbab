package spawn

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ResetIgnored gives every signal that this process was started to ignore its
// default again, because commands inherit what is ignored and would not expect
// it: nohup ignores SIGHUP, and glibc's posix_spawn leaves signals 32 and 33
// ignored. The Go runtime can do this for some of them only. It must be called
// before anything is started.
func ResetIgnored() {
	const ignored = 1 // SIG_IGN
	for sig := uintptr(1); sig <= 64; sig++ {
		var now, usual [4]uint64 // the kernel's sigaction
		_, _, errno := syscall.RawSyscall6(unix.SYS_RT_SIGACTION, sig, 0, uintptr(unsafe.Pointer(&now)), 8, 0, 0)
		if errno != 0 || now[0] != ignored {
			continue
		}
		// SIGKILL and SIGSTOP refuse, and are never ignored.
		_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&usual)), 0, 8, 0, 0)
	}
}
