package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/landlock"
	"github.com/sandgate/sandgate/agent/process"
	"github.com/sandgate/sandgate/agent/spawn"
)

type setup struct {
	name     string
	cgroup   bool
	noClone3 bool
	refuse   bool
	open     bool // without a Landlock domain
	// privileges: commands may gain privileges.
	privileges bool
	uid        int
	stall      time.Duration
	broken     time.Duration
}

// setups are the ways to start and kill commands.
func setups() []setup {
	return []setup{
		{name: "cgroup", cgroup: true},
		{name: "cgroup without clone3", cgroup: true, noClone3: true},
		asLocal,
		{name: "subreaper"},
		{name: "subreaper as uid 1000", uid: 1000},
		{name: "subreaper without a domain", open: true},
	}
}

// asLocal is an agent as the local provider starts it: commands can't write its cgroup
// and can't use clone3.
var asLocal = setup{name: "cgroup as uid 1000", cgroup: true, refuse: true, uid: 1000}

// eachSetup runs a test in every setup that this machine supports.
func eachSetup(t *testing.T, f func(*testing.T, *harness)) {
	for _, s := range setups() {
		t.Run(s.name, func(t *testing.T) { f(t, start(t, s)) })
	}
}

// cgroupRoot returns a writable cgroup v2 mount, or "".
func cgroupRoot() string {
	for _, dir := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err == nil {
			if unix.Access(dir, unix.W_OK) == nil {
				return dir
			}
		}
	}
	return ""
}

// restrictForTest sets no_new_privs, as runtimes do for agents, so that commands can have
// a Landlock domain.
func restrictForTest() error {
	if os.Getenv("SANDGATE_AGENT_TEST_PRIVILEGES") != "" {
		if err := process.RestrictCommands(); !errors.Is(err, spawn.ErrPrivileges) {
			return fmt.Errorf("restricted: %w", err)
		}
		return nil
	}
	if set, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err != nil || set == 0 && os.Getuid() != 0 {
		runtime.LockOSThread()
		return errors.Join(err, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
	}
	err := process.RestrictCommands(os.Getenv("SANDGATE_AGENT_TEST_CGROUP"))
	if errors.Is(err, landlock.ErrNothing) {
		return nil // an older kernel: commands work all the same
	}
	return err
}

// refuseClone3 makes clone3 fail with ENOSYS in this process and its children, as a
// runtime's seccomp filter does.
func refuseClone3() error {
	code := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_CLONE3, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	filter := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&filter)))
	if errno != 0 {
		return fmt.Errorf("refuse clone3: %w", errno)
	}
	return nil
}
