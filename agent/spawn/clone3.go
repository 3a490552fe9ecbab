package spawn

import "golang.org/x/sys/unix"

// cloneArgs is the kernel's struct clone_args up to the member cgroup
// (clone3(2)).
type cloneArgs struct {
	flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize uint64
	tls, setTID, setTIDSize, cgroup                                 uint64
}

// refusing is set by RefuseClone3.
var refusing bool

// RefuseClone3 makes clone3 fail with ENOSYS for commands and their descendants;
// C libraries then use clone. It is for an agent whose own seccomp filter allows
// clone3, which starts commands in their cgroups. A filter can't inspect the
// arguments of clone3, which could request new namespaces. It must be called before
// the first Start.
func RefuseClone3() { refusing = true }

// x32 is what programs of the x32 ABI add to a call's number. The number of clone3 is
// otherwise the same for every architecture.
const x32 = 0x40000000

var (
	refusalCode = [...]unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the call
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: ^uint32(x32)},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_CLONE3, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	refusal = unix.SockFprog{Len: uint16(len(refusalCode)), Filter: &refusalCode[0]}
)
