package oci

import (
	"slices"

	"github.com/moby/profiles/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

const clone3 = "clone3"

// Seccomp returns containerd's default profile with the changes that sandboxes
// need. For gVisor, and on request for others, it allows clone3.
func (r *Runtime) Seccomp(s *specs.Spec, allowClone3 bool) (*specs.LinuxSeccomp, error) {
	profile, err := seccomp.GetDefaultProfile(s)
	if err != nil {
		return nil, err
	}
	// Few kernels have the x32 calls, programs don't use them, and compiling
	// their rules takes a fifth of a sandbox's start. Without rules the kernel
	// kills a caller.
	profile.Architectures = slices.DeleteFunc(profile.Architectures, func(a specs.Arch) bool { return a == specs.ArchX32 })
	if allowClone3 || r.GVisor {
		// gVisor drops a rule's error, so that clone3 would fail with EPERM in place
		// of ENOSYS, after which C libraries try clone: no program could start a
		// thread. Namespaces inside are gVisor's own.
		setRule(profile, specs.LinuxSyscall{Names: []string{clone3}, Action: specs.ActAllow})
	}
	if !r.GVisor {
		// Contexts of asynchronous I/O are limited for the whole machine only.
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
