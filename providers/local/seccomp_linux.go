package local

import (
	"slices"

	"github.com/moby/profiles/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

const clone3 = "clone3"

// bornInCgroup says that the agent starts commands in their cgroups by clone3:
// moving there costs them some 10 ms after every pause. The agent alone may use
// it then, and refuses it to commands by a filter of its own. Not so where the
// runtime starts more processes in the sandbox: those have no filter of their own.
func (p *plan) bornInCgroup() bool { return p.cgroup != "" && !p.gvisor && p.socket }

// seccomp returns containerd's default profile with the changes that sandboxes
// need.
func (p *plan) seccomp(s *specs.Spec) (*specs.LinuxSeccomp, error) {
	profile, err := seccomp.GetDefaultProfile(s)
	if err != nil {
		return nil, err
	}
	// Few kernels have the x32 calls, nobody uses them, and compiling their rules
	// takes a fifth of a sandbox's start. Without rules they end the caller.
	profile.Architectures = slices.DeleteFunc(profile.Architectures, func(a specs.Arch) bool { return a == specs.ArchX32 })
	if p.bornInCgroup() || p.gvisor {
		// gVisor drops a rule's error, so that clone3 would fail with EPERM in place
		// of ENOSYS, after which C libraries try clone: no program could start a
		// thread. Namespaces inside are gVisor's own.
		setRule(profile, specs.LinuxSyscall{Names: []string{clone3}, Action: specs.ActAllow})
	}
	if !p.gvisor {
		// The contexts of asynchronous I/O are counted for the whole machine.
		missing := uint(unix.ENOSYS)
		setRule(profile, specs.LinuxSyscall{Names: []string{"io_setup"}, Action: specs.ActErrno, ErrnoRet: &missing})
	}
	return profile, nil
}

// setRule replaces all rules for the system calls of a rule.
func setRule(profile *specs.LinuxSeccomp, rule specs.LinuxSyscall) {
	for i := range profile.Syscalls {
		profile.Syscalls[i].Names = slices.DeleteFunc(profile.Syscalls[i].Names, func(name string) bool { return slices.Contains(rule.Names, name) })
	}
	profile.Syscalls = slices.DeleteFunc(profile.Syscalls, func(r specs.LinuxSyscall) bool { return len(r.Names) == 0 })
	profile.Syscalls = append(profile.Syscalls, rule)
}
