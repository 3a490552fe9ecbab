package main

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

var kinds = []struct {
	name string
	flag uintptr
}{
	{"mnt", unix.CLONE_NEWNS}, {"uts", unix.CLONE_NEWUTS}, {"ipc", unix.CLONE_NEWIPC}, {"user", unix.CLONE_NEWUSER},
	{"pid", unix.CLONE_NEWPID}, {"net", unix.CLONE_NEWNET}, {"cgroup", unix.CLONE_NEWCGROUP}, {"time", unix.CLONE_NEWTIME},
}

func namespaces() []attempt {
	f := family{name: "namespaces", want: []unix.Errno{unix.EPERM, unix.EACCES, unix.ENOSYS, unix.EINVAL, unix.ENOSPC}}
	for _, k := range kinds {
		f.add("unshare "+k.name, call(unix.SYS_UNSHARE, k.flag), unix.EPERM)
		f.add("clone "+k.name, spawned(k.flag), unix.EPERM, unix.EINVAL, unix.ENOSYS)
		args := struct{ flags, pidfd, childTID, parentTID, signal, stack, stackSize, tls, setTID, setTIDSize, cgroup uint64 }{
			flags: uint64(k.flag), signal: uint64(unix.SIGCHLD),
		}
		// The child is a copy of this thread; where it is made it must end at once.
		f.add("clone3 "+k.name, func() error {
			pid, _, errno := unix.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args), 0)
			if errno != 0 {
				return errno
			}
			if pid == 0 {
				_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
			}
			return nil
		}, unix.ENOSYS, unix.EPERM, unix.EINVAL)
		if k.name != "user" {
			f.add("unshare user and "+k.name, call(unix.SYS_UNSHARE, unix.CLONE_NEWUSER|k.flag), unix.EPERM)
			f.add("clone user and "+k.name, spawned(unix.CLONE_NEWUSER|k.flag), unix.EPERM, unix.EINVAL, unix.ENOSYS)
		}
		for _, of := range []string{"self", "1"} {
			f.add("setns "+of+" "+k.name, func() error {
				fd, err := unix.Open("/proc/"+of+"/ns/"+k.name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
				if err != nil {
					return err
				}
				defer unix.Close(fd)
				return unix.Setns(fd, int(k.flag))
			}, unix.EPERM, unix.EACCES, unix.ENOENT)
		}
	}
	return f.all
}

func mounts() []attempt {
	f := family{name: "mounts", want: []unix.Errno{unix.EPERM, unix.EACCES, unix.ENOSYS}}
	mount := func(source, target, kind string, flags uintptr) func() error {
		return func() error { return unix.Mount(source, target, kind, flags, "") }
	}
	for _, kind := range []string{
		"proc", "sysfs", "tmpfs", "cgroup", "cgroup2", "devpts", "devtmpfs", "bpf", "overlay", "debugfs", "tracefs",
		"securityfs", "mqueue", "fuse", "nfs", "configfs", "binfmt_misc", "ramfs", "hugetlbfs", "9p",
	} {
		f.add("mount "+kind, mount("none", "/tmp", kind, 0))
	}
	f.add("mount a disk", mount("/dev/sda", "/tmp", "ext4", 0))
	f.add("bind /", mount("/", "/tmp", "", unix.MS_BIND))
	f.add("remount / writable", mount("none", "/", "", unix.MS_REMOUNT))
	f.add("remount /usr writable", mount("none", "/usr", "", unix.MS_REMOUNT|unix.MS_BIND))
	f.add("move /tmp", mount("/tmp", "/home", "", unix.MS_MOVE))
	f.add("share /", mount("none", "/", "", unix.MS_SHARED|unix.MS_REC))
	for _, target := range []string{"/proc", "/sys", "/tmp", "/dev", "/proc/kcore", "/"} {
		f.add("umount "+target, func() error { return unix.Unmount(target, unix.MNT_DETACH) })
	}
	f.add("pivot_root", func() error { return unix.PivotRoot("/tmp", "/tmp") })
	f.add("chroot", func() error { return unix.Chroot("/tmp") })
	tmp, root, empty := text("tmpfs"), text("/"), text("")
	f.add("fsopen", call(unix.SYS_FSOPEN, tmp, 0))
	f.add("fspick", call(unix.SYS_FSPICK, at, root, 0))
	f.add("open_tree", call(unix.SYS_OPEN_TREE, at, root, unix.OPEN_TREE_CLONE))
	f.add("move_mount", call(unix.SYS_MOVE_MOUNT, at, root, at, root, 0))
	attr := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	f.add("mount_setattr", call(unix.SYS_MOUNT_SETATTR, at, root, 0, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr)))
	f.add("fsmount", call(unix.SYS_FSMOUNT, 0, 0, 0))
	f.add("fsconfig", call(unix.SYS_FSCONFIG, 0, 0, empty, empty, 0))
	return f.all
}

const at = ^uintptr(99) // AT_FDCWD

// kept holds what system calls are given as numbers.
var kept [][]byte

// text is a C string that stays where it is.
func text(s string) uintptr {
	b := append([]byte(s), 0)
	kept = append(kept, b)
	return uintptr(unsafe.Pointer(&b[0]))
}
