package spawn

import "golang.org/x/sys/unix"

// cloneArgs is the kernel's struct clone_args up to the member cgroup
// (clone3(2)).
type cloneArgs struct {
	flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize uint64
	tls, setTID, setTIDSize, cgroup                                 uint64
}

// refusing says that commands must not use clone3.
var refusing bool

// RefuseClone3 keeps clone3 from commands, and from all that they start: they
// get ENOSYS, after which a C library uses clone. It is for an agent whose own
// seccomp filter allows clone3, so that it can start commands in their cgroups:
// unlike clone's, its arguments are out of a filter's sight, and they could ask
// for new namespaces. It must be called before the first Start.
func RefuseClone3() { refusing = true }

// The number of clone3 is the same for every architecture. What a program of
// the x32 kind adds to it is taken off.
const x32 = 0x40000000

var (
	refusalCode = [...]unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the call's number
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: ^uint32(x32)},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_CLONE3, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	refusal = unix.SockFprog{Len: uint16(len(refusalCode)), Filter: &refusalCode[0]}
)
