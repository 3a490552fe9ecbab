package main

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// processes reaches for the agent, which is process 1, and for other processes.
func processes() []attempt {
	f := family{name: "processes", want: []unix.Errno{unix.EPERM, unix.EACCES, unix.ESRCH, unix.ENOSYS}}
	f.add("ptrace attach", func() error { return unix.PtraceAttach(1) })
	f.add("ptrace seize", func() error { return unix.PtraceSeize(1) })
	local, there := make([]byte, 8), unix.RemoteIovec{Base: 0x400000, Len: 8}
	f.add("process_vm_readv", func() error {
		_, err := unix.ProcessVMReadv(1, []unix.Iovec{{Base: &local[0], Len: 8}}, []unix.RemoteIovec{there}, 0)
		return err
	})
	f.add("process_vm_writev", func() error {
		_, err := unix.ProcessVMWritev(1, []unix.Iovec{{Base: &local[0], Len: 8}}, []unix.RemoteIovec{there}, 0)
		return err
	})
	f.add("kcmp", call(unix.SYS_KCMP, 1, uintptr(os.Getpid()), 2, 0, 0))
	for fd := range 12 {
		f.add(fmt.Sprintf("take descriptor %d", fd), func() error {
			pidfd, err := unix.PidfdOpen(1, 0)
			if err != nil {
				return err
			}
			defer unix.Close(pidfd)
			got, err := unix.PidfdGetfd(pidfd, fd, 0)
			if err != nil {
				return err
			}
			return unix.Close(got)
		})
	}
	f.add("process_madvise", func() error {
		pidfd, err := unix.PidfdOpen(1, 0)
		if err != nil {
			return err
		}
		defer unix.Close(pidfd)
		return call(unix.SYS_PROCESS_MADVISE, uintptr(pidfd), uintptr(unsafe.Pointer(&there)), 1, unix.MADV_COLD, 0)()
	}, unix.EPERM, unix.EACCES, unix.ENOSYS, unix.ESRCH, unix.EINVAL)
	for _, file := range []string{"mem", "environ", "maps", "smaps", "auxv", "stack", "syscall", "personality", "io", "pagemap", "exe", "cwd/x", "root/x", "fd/0", "map_files/x"} {
		f.add("read /proc/1/"+file, opened("/proc/1/"+file, unix.O_RDONLY), unix.EPERM, unix.EACCES, unix.ENOENT)
	}
	for _, file := range []string{"mem", "oom_score_adj", "clear_refs", "uid_map", "gid_map", "setgroups", "coredump_filter", "autogroup", "comm", "loginuid"} {
		f.add("write /proc/1/"+file, opened("/proc/1/"+file, unix.O_WRONLY), unix.EPERM, unix.EACCES, unix.ENOENT, unix.EROFS)
	}
	for _, w := range []struct{ file, value string }{{"attr/exec", "x"}, {"timerslack_ns", "1000000000"}} {
		f.add("write /proc/1/"+w.file, func() error {
			return os.WriteFile("/proc/1/"+w.file, []byte(w.value), 0)
		}, unix.EPERM, unix.EACCES, unix.ENOENT, unix.EROFS, unix.EINVAL)
	}
	f.add("limit the agent", func() error {
		return unix.Prlimit(1, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: 64}, nil)
	})
	f.add("see a process of the host", func() error {
		_, err := os.Stat("/proc/2/comm")
		if comm, err := os.ReadFile("/proc/2/comm"); err == nil && string(comm) == "kthreadd\n" {
			return nil
		}
		if err == nil {
			return unix.ESRCH // a process of this sandbox
		}
		return unix.ESRCH
	})
	return f.all
}

// identity tries to become somebody else, or to gain privileges.
func identity() []attempt {
	f := family{name: "identity", want: []unix.Errno{unix.EPERM, unix.EACCES, unix.EINVAL, unix.ENOSYS}}
	f.add("setuid 0", call(unix.SYS_SETUID, 0))
	f.add("setgid 0", call(unix.SYS_SETGID, 0))
	f.add("setresuid 0", call(unix.SYS_SETRESUID, 0, 0, 0))
	f.add("setresgid 0", call(unix.SYS_SETRESGID, 0, 0, 0))
	f.add("setreuid 0", call(unix.SYS_SETREUID, 0, 0))
	f.add("setregid 0", call(unix.SYS_SETREGID, 0, 0))
	f.add("setuid of another sandbox", call(unix.SYS_SETUID, 1001))
	group := []uint32{0}
	f.add("setgroups", call(unix.SYS_SETGROUPS, 1, uintptr(unsafe.Pointer(&group[0]))))
	for c := range uintptr(unix.CAP_LAST_CAP + 1) {
		f.add(fmt.Sprintf("raise capability %d", c), func() error {
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var data [2]unix.CapUserData
			data[c/32].Effective, data[c/32].Permitted = 1<<(c%32), 1<<(c%32)
			return unix.Capset(&header, &data[0])
		})
	}
	f.add("ambient capability", func() error {
		return unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_SYS_ADMIN, 0, 0)
	})
	f.add("securebits", func() error { return unix.Prctl(unix.PR_SET_SECUREBITS, 1, 0, 0, 0) })
	f.add("gain privileges again", func() error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0) })
	f.add("drop seccomp", func() error { return unix.Prctl(unix.PR_SET_SECCOMP, 0, 0, 0, 0) })
	f.add("more open files than allowed", func() error {
		var now unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
			return err
		}
		return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: now.Max + 1, Max: now.Max + 1})
	})
	f.add("realtime scheduling", func() error {
		priority := int32(1)
		return call(unix.SYS_SCHED_SETSCHEDULER, 0, unix.SCHED_FIFO, uintptr(unsafe.Pointer(&priority)))()
	})
	f.add("higher priority", func() error { return unix.Setpriority(unix.PRIO_PROCESS, 0, -20) })
	f.add("realtime input and output", call(unix.SYS_IOPRIO_SET, 1, 0, 1<<13))
	f.add("be spared by the OOM killer", func() error {
		return os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0)
	})
	own := func() (string, error) {
		path := fmt.Sprintf("/tmp/own-%d", os.Getpid())
		return path, os.WriteFile(path, nil, 0o700)
	}
	f.add("give a file to root", func() error {
		path, err := own()
		if err != nil {
			return err
		}
		return os.Chown(path, 0, 0)
	})
	f.add("file capability", func() error {
		path, err := own()
		if err != nil {
			return err
		}
		capability := []byte{1, 0, 0, 2, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
		return unix.Setxattr(path, "security.capability", capability, 0)
	}, unix.EPERM, unix.EOPNOTSUPP, unix.EACCES)
	return f.all
}

// files reaches for files that are not the sandbox's.
func files() []attempt {
	f := family{name: "files", want: []unix.Errno{unix.EROFS, unix.EACCES, unix.EPERM, unix.ENOENT}}
	for _, path := range []string{
		"/x", "/usr/x", "/usr/bin/sh", "/bin/x", "/sbin/x", "/lib/x", "/etc/passwd", "/etc/shadow", "/etc/x", "/root/x", "/opt/x",
		"/boot/x", "/srv/x", "/var/x", "/proc/x", "/sys/x", "/.sandgate/x", "/.sandgate/sandgate-agent", "/usr/lib/x", "/dev/x", "/dev/pts/x",
	} {
		f.add("write "+path, opened(path, unix.O_WRONLY|unix.O_CREAT), unix.EROFS, unix.EACCES, unix.EPERM, unix.ENOENT, unix.EISDIR, unix.ENOTDIR)
	}
	for _, path := range []string{"/var/lib/sandgate", "/root/.ssh", "/etc/shadow", "/proc/1/root/var/lib/sandgate", "/run/docker.sock", "/var/run/secrets/kubernetes.io/serviceaccount/token"} {
		f.add("read "+path, opened(path, unix.O_RDONLY), unix.ENOENT, unix.EACCES, unix.EPERM)
	}
	f.add("make a cgroup", func() error { return os.Mkdir("/.sandgate/cgroup/escape", 0o700) })
	f.add("leave the cgroup", func() error {
		return os.WriteFile("/.sandgate/cgroup/cgroup.procs", []byte("0"), 0)
	})
	f.add("freeze the agent", func() error {
		return os.WriteFile("/.sandgate/cgroup/cgroup.freeze", []byte("1"), 0)
	})
	f.add("link a file of the system", func() error { return os.Link("/etc/passwd", "/tmp/link") },
		unix.EXDEV, unix.EPERM, unix.EROFS, unix.EACCES)
	f.add("remove the agent", func() error { return os.Remove("/.sandgate/sandgate-agent") })
	f.add("rename the agent", func() error { return os.Rename("/.sandgate", "/tmp/gone") },
		unix.EROFS, unix.EACCES, unix.EPERM, unix.ENOENT, unix.EXDEV, unix.EBUSY)
	for _, c := range []struct {
		name    string
		request uint
	}{{"freeze the file system", 0xc0045877}, {"thaw the file system", 0xc0045878}, {"trim the file system", 0xc0185879}} {
		f.add(c.name, func() error {
			fd, err := unix.Open("/tmp", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return call(unix.SYS_IOCTL, uintptr(fd), uintptr(c.request), 0)()
		}, unix.EPERM, unix.ENOTTY, unix.EACCES, unix.EOPNOTSUPP)
	}
	return f.all
}
