package egress

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"time"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
)

// SOCKS5, RFC 1928.
const (
	socksVersion = 5
	socksNoAuth  = 0
	socksConnect = 1

	socksIPv4 = 1
	socksName = 3
	socksIPv6 = 4
)

// Replies of SOCKS5.
const (
	socksSucceeded       = 0
	socksFailure         = 1
	socksNotAllowed      = 2
	socksHostUnreachable = 4
	socksBadCommand      = 7
	socksBadAddress      = 8
)

// noMethod rejects all methods of authentication that a client offers.
const noMethod = 0xff

var errSOCKS = errors.New("malformed SOCKS request")

// serveSOCKS serves one SOCKS5 connection. UDP and BIND are refused.
func (s *Service) serveSOCKS(conn *net.TCPConn, in *bufio.Reader) {
	method, err := readSOCKSMethods(in)
	if err != nil {
		return
	}
	if _, err := conn.Write([]byte{socksVersion, method}); err != nil || method == noMethod {
		return
	}
	host, port, failure, err := readSOCKSRequest(in)
	if err != nil {
		return
	}
	if failure != socksSucceeded {
		_, _ = conn.Write(socksReply(failure))
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	remote, err := s.dial(s.ctx, host, port)
	if err != nil {
		_, _ = conn.Write(socksReply(socksFailureOf(err)))
		return
	}
	defer func() { _ = remote.Close() }()
	if _, err := conn.Write(socksReply(socksSucceeded)); err != nil {
		return
	}
	s.relay(conn, in, remote)
}

// readSOCKSMethods reads a client's greeting and returns the method to use.
func readSOCKSMethods(in io.Reader) (byte, error) {
	var head [2]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return 0, err
	}
	if head[0] != socksVersion {
		return 0, errSOCKS
	}
	methods := make([]byte, head[1])
	if _, err := io.ReadFull(in, methods); err != nil {
		return 0, err
	}
	for _, m := range methods {
		if m == socksNoAuth {
			return socksNoAuth, nil
		}
	}
	return noMethod, nil
}

// readSOCKSRequest reads a client's request. failure is the reply to one that is
// not served.
func readSOCKSRequest(in io.Reader) (host string, port uint16, failure byte, err error) {
	var head [4]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return "", 0, 0, err
	}
	if head[0] != socksVersion {
		return "", 0, 0, errSOCKS
	}
	var size int
	switch head[3] {
	case socksIPv4:
		size = net.IPv4len
	case socksIPv6:
		size = net.IPv6len
	case socksName:
		var length [1]byte
		if _, err := io.ReadFull(in, length[:]); err != nil {
			return "", 0, 0, err
		}
		size = int(length[0])
	default:
		return "", 0, socksBadAddress, nil
	}
	rest := make([]byte, size+2)
	if _, err := io.ReadFull(in, rest); err != nil {
		return "", 0, 0, err
	}
	port = binary.BigEndian.Uint16(rest[size:])
	if head[1] != socksConnect {
		return "", 0, socksBadCommand, nil
	}
	if host = string(rest[:size]); head[3] != socksName {
		addr, _ := netip.AddrFromSlice(rest[:size])
		host = addr.String()
	}
	if host == "" || port == 0 {
		return "", 0, socksBadAddress, nil
	}
	return host, port, socksSucceeded, nil
}

// socksReply returns a reply without a bound address, which no client needs.
func socksReply(code byte) []byte {
	return []byte{socksVersion, code, 0, socksIPv4, 0, 0, 0, 0, 0, 0}
}

// socksFailureOf returns the reply for a failed connection.
func socksFailureOf(err error) byte {
	var r *refusal
	switch {
	case !errors.As(err, &r):
		return socksFailure
	case r.reason == agentv1.EgressRefusalReason_EGRESS_REFUSAL_REASON_DENIED:
		return socksNotAllowed
	case r.reason == agentv1.EgressRefusalReason_EGRESS_REFUSAL_REASON_UNREACHABLE:
		return socksHostUnreachable
	default:
		return socksFailure
	}
}
