package main

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// kernel asks the kernel for what concerns the whole machine.
func kernel() []attempt {
	f := family{name: "kernel", want: []unix.Errno{unix.EPERM, unix.EACCES, unix.ENOSYS}}
	zero := make([]byte, 4096)
	kept = append(kept, zero)
	block := uintptr(unsafe.Pointer(&zero[0]))
	empty, name := text(""), text("sandgate")
	for _, c := range []struct {
		name   string
		number uintptr
		args   []uintptr
	}{
		{"bpf map_create", unix.SYS_BPF, []uintptr{unix.BPF_MAP_CREATE, block, 72}},
		{"bpf prog_load", unix.SYS_BPF, []uintptr{unix.BPF_PROG_LOAD, block, 128}},
		{"perf_event_open", unix.SYS_PERF_EVENT_OPEN, []uintptr{block, 0, ^uintptr(0), ^uintptr(0), 0}},
		{"userfaultfd", unix.SYS_USERFAULTFD, []uintptr{0}},
		{"io_uring_setup", unix.SYS_IO_URING_SETUP, []uintptr{1, block}},
		{"add_key", unix.SYS_ADD_KEY, []uintptr{text("user"), name, block, 1, ^uintptr(2)}},
		{"request_key", unix.SYS_REQUEST_KEY, []uintptr{text("user"), name, 0, ^uintptr(2)}},
		{"keyctl get", unix.SYS_KEYCTL, []uintptr{0, ^uintptr(2), 0}},
		{"keyctl join", unix.SYS_KEYCTL, []uintptr{1, 0}},
		{"kexec_load", unix.SYS_KEXEC_LOAD, []uintptr{0, 0, 0, 0}},
		{"init_module", unix.SYS_INIT_MODULE, []uintptr{block, 16, empty}},
		{"finit_module", unix.SYS_FINIT_MODULE, []uintptr{0, empty, 0}},
		{"delete_module", unix.SYS_DELETE_MODULE, []uintptr{name, unix.O_NONBLOCK}},
		{"reboot", unix.SYS_REBOOT, []uintptr{0xfee1dead, 672274793, 0, 0}}, // CAD off: harmless
		{"swapon", unix.SYS_SWAPON, []uintptr{text("/tmp/none"), 0}},
		{"swapoff", unix.SYS_SWAPOFF, []uintptr{text("/tmp/none")}},
		{"settimeofday", unix.SYS_SETTIMEOFDAY, []uintptr{0, block}},
		{"clock_settime", unix.SYS_CLOCK_SETTIME, []uintptr{0, block}},
		{"acct", unix.SYS_ACCT, []uintptr{text("/tmp/none")}},
		{"quotactl", unix.SYS_QUOTACTL, []uintptr{0x80000100, empty, 0, block}},
		{"sethostname", unix.SYS_SETHOSTNAME, []uintptr{name, 8}},
		{"setdomainname", unix.SYS_SETDOMAINNAME, []uintptr{name, 8}},
		{"syslog read", unix.SYS_SYSLOG, []uintptr{3, block, 16}},
		{"syslog console off", unix.SYS_SYSLOG, []uintptr{6, 0, 0}},
		{"vhangup", unix.SYS_VHANGUP, nil},
		{"fanotify_init", unix.SYS_FANOTIFY_INIT, []uintptr{unix.FAN_CLASS_CONTENT, 0}},
		{"open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, []uintptr{at, block, 0}},
		{"lookup_dcookie", unix.SYS_LOOKUP_DCOOKIE, []uintptr{1, block, 16}},
		{"io_setup", unix.SYS_IO_SETUP, []uintptr{65536, block}},
		{"move_pages of others", unix.SYS_MOVE_PAGES, []uintptr{1, 0, 0, 0, 0, 0}},
		{"migrate_pages of others", unix.SYS_MIGRATE_PAGES, []uintptr{1, 8, block, block}},
	} {
		f.add(c.name, call(c.number, c.args...))
	}
	f.add("adjust the clock", func() error {
		_, err := unix.Adjtimex(&unix.Timex{Modes: 1})
		return err
	})
	for _, path := range []string{
		"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hostname",
		"/proc/sys/kernel/randomize_va_space", "/proc/sys/kernel/ns_last_pid", "/proc/sys/kernel/pid_max",
		"/proc/sys/kernel/unprivileged_bpf_disabled", "/proc/sys/kernel/yama/ptrace_scope", "/proc/sys/kernel/sysrq",
		"/proc/sys/vm/overcommit_memory", "/proc/sys/vm/drop_caches", "/proc/sys/vm/panic_on_oom", "/proc/sys/fs/file-max",
		"/proc/sys/fs/binfmt_misc/register", "/proc/sys/fs/suid_dumpable", "/proc/sys/net/ipv4/ip_forward",
		"/proc/sys/user/max_user_namespaces", "/proc/sysrq-trigger", "/proc/kcore", "/proc/kmsg", "/proc/scsi/scsi",
		"/proc/acpi/wakeup", "/proc/bus/pci/devices", "/proc/irq/default_smp_affinity", "/proc/mtrr",
		"/sys/kernel/uevent_helper", "/sys/kernel/mm/ksm/run", "/sys/power/state", "/sys/power/wake_lock",
		"/sys/module/apparmor/parameters/mode", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/cgroup.procs",
		"/sys/fs/cgroup/release_agent", "/sys/fs/cgroup/memory/release_agent", "/sys/kernel/debug/x", "/sys/kernel/security/x",
		"/sys/firmware/efi/efivars/x", "/sys/class/net/lo/mtu", "/sys/devices/system/cpu/cpu1/online",
	} {
		f.add("write "+path, opened(path, unix.O_WRONLY), unix.EPERM, unix.EACCES, unix.EROFS, unix.ENOENT, unix.EINVAL, unix.EIO)
	}
	for _, path := range []string{"/proc/kcore", "/proc/kmsg", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/1/root/root", "/proc/kpagecount", "/proc/vmallocinfo", "/proc/slabinfo"} {
		f.add("read "+path, nonempty(path), unix.EPERM, unix.EACCES, unix.ENOENT, unix.ENODATA)
	}
	for _, path := range []string{
		"/sys/block/loop0/loop/backing_file", "/sys/devices/virtual/block/loop0/loop/backing_file", "/proc/diskstats", "/proc/partitions",
		"/sys/class/block/loop0/uevent", "/sys/dev/block/7:0/uevent",
	} {
		f.add("see disks in "+path, nonempty(path), unix.EPERM, unix.EACCES, unix.ENOENT, unix.ENODATA)
	}
	return f.all
}

// nonempty is an attempt to read at least a byte. A file that is masked is empty.
func nonempty(path string) func() error {
	return func() error {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		n, err := unix.Read(fd, make([]byte, 1))
		if err == unix.EISDIR {
			return unix.ENOENT
		}
		if err == nil && n == 0 {
			return unix.ENODATA
		}
		return err
	}
}
