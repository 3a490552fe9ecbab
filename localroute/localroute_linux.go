// Package localroute makes routes that lead addresses to the sandbox itself, where its
// agent listens. They lead nowhere else: a network namespace with only a loopback
// interface has no way out, whatever its routes.
package localroute

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// Names has the addresses that the agent gives to names: a block for benchmarks, which
// no network uses, and which programs do not take for loopback.
var Names = netip.MustParsePrefix("198.18.0.0/15")

const (
	// protocol marks the routes of this package in the table.
	protocol = 0x53
	loopback = 1 // its index in every network namespace
	// maxReply is what one read takes; the kernel's dumps come in parts of at most
	// 32 KiB.
	maxReply = 64 << 10
)

// Set makes these prefixes, and no others, local in a network namespace, besides what
// the kernel itself has there. namespace is its file, such as /proc/PID/ns/net; nil:
// the caller's own. Without IPv6 in the namespace, prefixes of IPv6 are left out.
func Set(namespace *os.File, prefixes []netip.Prefix) error {
	socket, err := open(namespace)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(socket) }()
	have, err := list(socket)
	if err != nil {
		return fmt.Errorf("list local routes: %w", err)
	}
	for _, prefix := range prefixes {
		if slices.Contains(have, prefix) {
			continue
		}
		err := change(socket, unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, prefix)
		if prefix.Addr().Is6() && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EOPNOTSUPP)) {
			continue // net.ipv6.conf.lo.disable_ipv6, or a kernel without IPv6
		}
		if err != nil {
			return fmt.Errorf("add the local route %s: %w", prefix, err)
		}
	}
	for _, prefix := range have {
		if slices.Contains(prefixes, prefix) {
			continue
		}
		if err := change(socket, unix.RTM_DELROUTE, 0, prefix); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("delete the local route %s: %w", prefix, err)
		}
	}
	return nil
}

// open returns a netlink socket of the namespace.
func open(namespace *os.File) (int, error) {
	if namespace == nil {
		return dial()
	}
	type result struct {
		socket int
		err    error
	}
	done := make(chan result)
	var enter func()
	enter = func() {
		// The thread is never unlocked, so it ends with the goroutine and nothing else
		// runs on it.
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			// The main thread cannot exit.
			go enter()
			runtime.UnlockOSThread()
			return
		}
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- result{err: fmt.Errorf("enter the network namespace: %w", err)}
			return
		}
		socket, err := dial()
		done <- result{socket, err}
	}
	go enter()
	r := <-done
	return r.socket, r.err
}

func dial() (int, error) {
	socket, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return 0, fmt.Errorf("netlink socket: %w", err)
	}
	// The kernel answers at once, or not at all.
	return socket, unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5})
}

// list returns the prefixes of this package's routes.
func list(socket int) (all []netip.Prefix, err error) {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		err := exchange(socket, unix.RTM_GETROUTE, unix.NLM_F_DUMP, route{family: family}.encode(), func(data []byte) {
			if prefix, ok := parse(data); ok {
				all = append(all, prefix)
			}
		})
		if err != nil && family == unix.AF_INET {
			return nil, err
		}
	}
	return all, nil
}

func change(socket int, kind, flags uint16, prefix netip.Prefix) error {
	r := route{family: unix.AF_INET, bits: byte(prefix.Bits()), table: unix.RT_TABLE_LOCAL, protocol: protocol, scope: unix.RT_SCOPE_HOST, kind: unix.RTN_LOCAL}
	if prefix.Addr().Is6() {
		r.family, r.scope = unix.AF_INET6, unix.RT_SCOPE_UNIVERSE
	}
	body := attribute(r.encode(), unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, loopback))
	if prefix.Bits() > 0 {
		body = attribute(body, unix.RTA_DST, prefix.Addr().AsSlice())
	}
	if prefix.Addr().Is4() {
		// Otherwise the source of a connection would be its destination, and one to a
		// port without a listener could connect to itself.
		body = attribute(body, unix.RTA_PREFSRC, []byte{127, 0, 0, 1})
	}
	return exchange(socket, kind, flags|unix.NLM_F_ACK, body, nil)
}

// route is struct rtmsg.
type route struct{ family, bits, table, protocol, scope, kind byte }

func (r route) encode() []byte {
	return []byte{r.family, r.bits, 0, 0, r.table, r.protocol, r.scope, r.kind, 0, 0, 0, 0}
}

// attribute appends an attribute. Those of routes have whole words.
func attribute(body []byte, kind uint16, value []byte) []byte {
	body = binary.NativeEndian.AppendUint16(body, uint16(unix.SizeofRtAttr+len(value)))
	body = binary.NativeEndian.AppendUint16(body, kind)
	return append(body, value...)
}

// parse returns the prefix of one of this package's routes.
func parse(data []byte) (netip.Prefix, bool) {
	if len(data) < unix.SizeofRtMsg || data[4] != unix.RT_TABLE_LOCAL || data[5] != protocol {
		return netip.Prefix{}, false
	}
	addr := netip.IPv4Unspecified()
	if data[0] == unix.AF_INET6 {
		addr = netip.IPv6Unspecified()
	}
	bits := int(data[1])
	for rest := data[unix.SizeofRtMsg:]; len(rest) >= unix.SizeofRtAttr; {
		size := int(binary.NativeEndian.Uint16(rest))
		if size < unix.SizeofRtAttr || size > len(rest) {
			break
		}
		if binary.NativeEndian.Uint16(rest[2:]) == unix.RTA_DST {
			addr, _ = netip.AddrFromSlice(rest[unix.SizeofRtAttr:size])
		}
		rest = rest[min((size+3)&^3, len(rest)):]
	}
	prefix := netip.PrefixFrom(addr, bits)
	return prefix, prefix.IsValid()
}

// exchange sends one message and reads the answer until its end.
func exchange(socket int, kind, flags uint16, body []byte, each func([]byte)) error {
	m := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = binary.NativeEndian.AppendUint16(m, flags|unix.NLM_F_REQUEST)
	m = append(m, make([]byte, 8)...) // sequence number and port
	if err := unix.Sendto(socket, append(m, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buffer := make([]byte, maxReply)
	for {
		n, _, err := unix.Recvfrom(socket, buffer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		for rest := buffer[:n]; len(rest) >= unix.SizeofNlMsghdr; {
			size := int(binary.NativeEndian.Uint32(rest))
			if size < unix.SizeofNlMsghdr || size > len(rest) {
				return unix.EBADMSG
			}
			data := rest[unix.SizeofNlMsghdr:size]
			switch binary.NativeEndian.Uint16(rest[4:]) {
			case unix.NLMSG_DONE:
				return nil
			case unix.NLMSG_ERROR:
				if len(data) < 4 {
					return unix.EBADMSG
				}
				if code := int32(binary.NativeEndian.Uint32(data)); code != 0 {
					return unix.Errno(-code)
				}
				return nil
			default:
				if each != nil {
					each(data)
				}
			}
			rest = rest[min((size+3)&^3, len(rest)):]
		}
	}
}
