package spawn

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// cloneArgs is the kernel's struct clone_args up to the member cgroup
// (clone3(2)).
type cloneArgs struct {
	flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize uint64
	tls, setTID, setTIDSize, cgroup                                 uint64
}

// clone3Key is what the agent passes in the third and fourth argument of clone3, which
// the kernel ignores. RefuseClone3 sets it.
var clone3Key [2]uint64

// RefuseClone3 makes clone3 fail with ENOSYS for commands and their descendants;
// C libraries then use clone. It is for an agent whose own seccomp filter allows
// clone3, which starts commands in their cgroups. A filter can't inspect the
// structure that clone3 gets, which could request new namespaces. It must be called at
// most once, before the first Start.
//
// Commands inherit the filter from the thread that starts them, which itself uses
// clone3. So the filter allows a call with a random key of 128 bits. Commands can't
// read it: not from the filter, which takes CAP_SYS_ADMIN, and not from the agent,
// which can't be traced.
func RefuseClone3() error {
	var random [16]byte
	_, _ = rand.Read(random[:]) // never fails
	key := [2]uint64{binary.NativeEndian.Uint64(random[:]), binary.NativeEndian.Uint64(random[8:])}
	err := onParent(func() error { return filterClone3(key) })
	if err == nil {
		clone3Key = key
	}
	return err
}

// filterClone3 sets the filter for the calling thread, and no_new_privs, which the
// kernel requires of a thread without privileges.
func filterClone3(key [2]uint64) error {
	code := clone3Code(key)
	program := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	_, _, errno := syscall.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW, uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(code)
	if errno != 0 {
		return fmt.Errorf("filter clone3: %w", errno)
	}
	return nil
}

// x32 is what programs of the x32 ABI add to a call's number. The number of clone3 is
// otherwise the same for every architecture.
const x32 = 0x40000000

// clone3Code returns the filter's code. It compares all of the key before it decides, so
// the time that a call takes tells nothing about the key.
func clone3Code(key [2]uint64) []unix.SockFilter {
	const number, arguments = 0, 16 // offsets in seccomp_data
	words := [4]uint32{uint32(key[0]), uint32(key[0] >> 32), uint32(key[1]), uint32(key[1] >> 32)}
	code := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: number},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: ^uint32(x32)},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_CLONE3, Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	for i, word := range words { // little-endian, as amd64 and arm64 are
		code = append(code,
			unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: arguments + 2*8 + 4*uint32(i)},
			unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_XOR | unix.BPF_K, K: word},
			unix.SockFilter{Code: unix.BPF_ST, K: uint32(i)},
		)
	}
	for i := range words[1:] { // the accumulator holds what differs in the last word
		code = append(code,
			unix.SockFilter{Code: unix.BPF_LDX | unix.BPF_W | unix.BPF_MEM, K: uint32(i)},
			unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_OR | unix.BPF_X},
		)
	}
	return append(code,
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0, Jf: 1},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
	)
}
