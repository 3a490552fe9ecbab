package spawn

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ResetIgnored resets every ignored signal to its default action, because commands
// would inherit that it is ignored: nohup ignores SIGHUP, and glibc's posix_spawn
// leaves signals 32 and 33 ignored. The Go runtime can reset only some of them. It
// must be called before the first Start.
func ResetIgnored() {
	const ignored = 1 // SIG_IGN
	for sig := uintptr(1); sig <= 64; sig++ {
		var now, usual [4]uint64 // the kernel's sigaction
		_, _, errno := syscall.RawSyscall6(unix.SYS_RT_SIGACTION, sig, 0, uintptr(unsafe.Pointer(&now)), 8, 0, 0)
		if errno != 0 || now[0] != ignored {
			continue
		}
		// SIGKILL and SIGSTOP can't be ignored.
		_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&usual)), 0, 8, 0, 0)
	}
}
