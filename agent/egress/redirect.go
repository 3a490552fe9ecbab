package egress

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/spawn"
)

const (
	dnsPort = 53
	// readRetry is the pause before the next attempt to read a connect.
	readRetry = 100 * time.Millisecond
)

// doors is where names have their addresses.
var doors = netip.PrefixFrom(netip.AddrFrom4([4]byte{127, 80, 0, 0}), 16)

// redirect has programs connect to the agent where it can't listen at the ports that
// they use, or is not their name server: it changes the address in their memory. A
// program of which it can't read the memory connects to what it asked for, as does one
// that bypasses the filter. Neither finds a route.
type redirect struct {
	service  *Service
	connects *spawn.Connects
	// dns is the agent's name server. local means that nothing else can be one on a
	// loopback address.
	dns   netip.AddrPort
	local bool
}

// serve answers until the process ends, also after Close: whoever is not answered
// waits.
func (r *redirect) serve() {
	for {
		one, err := r.connects.Next()
		if err != nil { // such as a lack of memory: programs wait meanwhile
			r.service.cfg.Log.Error("cannot read the connects of programs", "error", err)
			time.Sleep(readRetry)
			continue
		}
		r.service.recovery.Guard("a redirect", func() { r.change(one) })
		if err := r.connects.Continue(one); err != nil {
			r.service.cfg.Log.Error("a connect of a program was not answered", "error", err)
		}
	}
}

// change changes the address of a connect, if there is another for it.
func (r *redirect) change(one spawn.Connect) {
	if one.Thread == 0 || one.Length < unix.SizeofSockaddrInet4 {
		return
	}
	memory, err := unix.Open("/proc/"+strconv.FormatUint(uint64(one.Thread), 10)+"/mem", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return // the program protects itself
	}
	defer func() { _ = unix.Close(memory) }()
	var buffer [unix.SizeofSockaddrInet6]byte
	address := buffer[:min(one.Length, unix.SizeofSockaddrInet6)]
	if n, err := unix.Pread(memory, address, int64(one.Address)); err != nil || n < len(address) {
		return
	}
	to, ok := readAddress(address)
	if !ok {
		return
	}
	if to = r.target(to); !to.IsValid() {
		return
	}
	// Checked when the memory is open: it is the thread's and not that of another one
	// with its id.
	if !r.connects.Waits(one) {
		return
	}
	writeAddress(address, to)
	if _, err := unix.Pwrite(memory, address, int64(one.Address)); err != nil {
		r.service.cfg.Log.Warn("a connect of a program was not redirected", "error", err)
	}
}

// target returns where to connect instead. The result is invalid if there is no other.
func (r *redirect) target(to netip.AddrPort) netip.AddrPort {
	addr := to.Addr()
	if doors.Contains(addr) {
		if port := r.service.names.otherPort(netip.AddrPortFrom(addr, to.Port())); port != 0 {
			return netip.AddrPortFrom(addr, port)
		}
	}
	if to.Port() == dnsPort && (r.local || !addr.IsLoopback() && !addr.IsUnspecified()) {
		return r.dns
	}
	return netip.AddrPort{}
}

// The offsets in a sockaddr_in and a sockaddr_in6.
const (
	offsetPort  = 2
	offsetAddr  = 4
	offsetAddr6 = 8
	endAddr6    = offsetAddr6 + 16
)

// readAddress returns the address in a socket address. One that IPv6 maps is IPv4's.
func readAddress(b []byte) (netip.AddrPort, bool) {
	port := binary.BigEndian.Uint16(b[offsetPort:])
	switch family := binary.NativeEndian.Uint16(b); {
	case family == unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[offsetAddr:])), port), true
	case family == unix.AF_INET6 && len(b) >= endAddr6:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[offsetAddr6:])).Unmap(), port), true
	}
	return netip.AddrPort{}, false
}

// writeAddress puts an IPv4 address into a socket address of either family.
func writeAddress(b []byte, to netip.AddrPort) {
	binary.BigEndian.PutUint16(b[offsetPort:], to.Port())
	if binary.NativeEndian.Uint16(b) == unix.AF_INET {
		addr := to.Addr().As4()
		copy(b[offsetAddr:], addr[:])
		return
	}
	addr := to.Addr().As16()
	copy(b[offsetAddr6:], addr[:])
}

// startRedirect redirects the connects of commands. err is why the name server does
// not listen where resolvers ask, nil if it does.
func (s *Service) startRedirect(err error) error {
	r := &redirect{service: s, dns: s.nameServer, local: errors.Is(err, unix.EACCES)}
	if r.connects, err = s.cfg.Redirect(); err != nil {
		return err
	}
	s.redirecting.Store(true)
	go r.serve()
	return nil
}
