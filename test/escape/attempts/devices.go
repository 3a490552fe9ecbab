package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

func devices() []attempt {
	f := family{name: "devices"}
	for _, d := range []struct {
		name         string
		kind         uint32
		major, minor uint32
	}{
		{"mem", unix.S_IFCHR, 1, 1}, {"kmem", unix.S_IFCHR, 1, 2}, {"port", unix.S_IFCHR, 1, 4}, {"kmsg", unix.S_IFCHR, 1, 11},
		{"fuse", unix.S_IFCHR, 10, 229}, {"kvm", unix.S_IFCHR, 10, 232}, {"tun", unix.S_IFCHR, 10, 200},
		{"loop-control", unix.S_IFCHR, 10, 237}, {"vhost-net", unix.S_IFCHR, 10, 238}, {"uinput", unix.S_IFCHR, 10, 223},
		{"snapshot", unix.S_IFCHR, 10, 231}, {"mapper", unix.S_IFCHR, 10, 236}, {"msr", unix.S_IFCHR, 202, 0},
		{"loop0", unix.S_IFBLK, 7, 0}, {"sda", unix.S_IFBLK, 8, 0}, {"vda", unix.S_IFBLK, 254, 0}, {"ram0", unix.S_IFBLK, 1, 0},
	} {
		f.add("mknod "+d.name, func() error {
			path := fmt.Sprintf("/tmp/node-%d", os.Getpid())
			defer func() { _ = unix.Unlink(path) }()
			return unix.Mknod(path, d.kind|0o600, int(unix.Mkdev(d.major, d.minor)))
		}, unix.EPERM)
	}
	for _, name := range []string{
		"mem", "kmem", "port", "kmsg", "fuse", "kvm", "net/tun", "loop-control", "loop0", "sda", "vda", "nvme0n1", "vhost-net",
		"mapper/control", "snapshot", "hpet", "cpu/0/msr", "watchdog", "uinput", "userfaultfd", "dri/card0", "mei0", "rtc0",
	} {
		f.add("open /dev/"+name, opened("/dev/"+name, unix.O_RDWR), unix.ENOENT, unix.EPERM, unix.EACCES, unix.ENXIO)
	}
	return f.all
}

// Families of sockets that reach nothing outside of the sandbox, or are its own.
var own = map[int]bool{unix.AF_UNIX: true, unix.AF_INET: true, unix.AF_INET6: true, unix.AF_NETLINK: true}

func sockets() []attempt {
	f := family{name: "sockets", want: []unix.Errno{
		unix.EPERM, unix.EACCES, unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT, unix.ESOCKTNOSUPPORT, unix.EINVAL,
	}}
	socket := func(domain, kind, protocol int) func() error {
		return func() error {
			fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, protocol)
			if err != nil {
				return err
			}
			return unix.Close(fd)
		}
	}
	for domain := 3; domain < 46; domain++ {
		if own[domain] {
			continue
		}
		for _, kind := range []struct {
			name string
			is   int
		}{{"stream", unix.SOCK_STREAM}, {"raw", unix.SOCK_RAW}} {
			f.add(fmt.Sprintf("family %d %s", domain, kind.name), socket(domain, kind.is, 0))
		}
	}
	for _, domain := range []int{unix.AF_INET, unix.AF_INET6} {
		f.add(fmt.Sprintf("raw IP, family %d", domain), socket(domain, unix.SOCK_RAW, unix.IPPROTO_RAW))
		f.add(fmt.Sprintf("raw ICMP, family %d", domain), socket(domain, unix.SOCK_RAW, unix.IPPROTO_ICMP))
	}
	dial := func(a, b, c, d byte, port int) func() error {
		return func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{a, b, c, d}})
		}
	}
	unreachable := []unix.Errno{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EPERM, unix.EACCES}
	f.add("connect to a public address", dial(192, 0, 2, 1, 443), unreachable...)
	f.add("connect to the metadata service", dial(169, 254, 169, 254, 80), unreachable...)
	f.add("connect to a private network", dial(10, 0, 0, 1, 443), unreachable...)
	f.add("connect to the agent's abstract socket", func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Connect(fd, &unix.SockaddrUnix{Name: "@sandgate"})
	}, unix.ECONNREFUSED, unix.EPERM)
	return f.all
}
