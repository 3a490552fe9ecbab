package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/sandgate/sandgate/agent/fault"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// dialTimeout bounds a connection attempt: a program that has stopped accepting
// answers neither yes nor no.
const dialTimeout = 10 * time.Second

// localhost is what "localhost" stands for, in the order of the attempts.
var localhost = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}

// addresses returns the addresses of a host, which must be a loopback one.
func addresses(host string) ([]netip.Addr, error) {
	if host == "" || host == "localhost" {
		return localhost, nil
	}
	addr, err := netip.ParseAddr(host)
	if err != nil || !addr.IsLoopback() || addr.Zone() != "" {
		return nil, invalid("start.host", "must be \"localhost\" or a loopback address")
	}
	return []netip.Addr{addr}, nil
}

// dial connects to a port of the sandbox.
func dial(ctx context.Context, start *sandboxv1.ForwardStart) (*net.TCPConn, error) {
	port := start.GetPort()
	if port < 1 || port > 65_535 {
		return nil, invalid("start.port", "must be 1 to 65535")
	}
	addrs, err := addresses(start.GetHost())
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: dialTimeout, KeepAlive: -1}
	var failed error
	for _, addr := range addrs {
		conn, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(addr, uint16(port)).String())
		if err == nil {
			return conn.(*net.TCPConn), nil
		}
		if ctx.Err() != nil {
			return nil, fault.CallEnded(ctx)
		}
		if failed == nil || !isClosed(err) {
			failed = err
		}
	}
	return nil, dialFault(failed, port)
}

// isClosed reports whether nothing listens, or the sandbox has no such address.
func isClosed(err error) bool {
	for _, errno := range []unix.Errno{
		unix.ECONNREFUSED, unix.EADDRNOTAVAIL, unix.EAFNOSUPPORT, unix.ENETUNREACH, unix.EHOSTUNREACH,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

func dialFault(err error, port int32) error {
	metadata := map[string]string{"port": strconv.Itoa(int(port))}
	var timeout net.Error
	switch {
	case isClosed(err):
		return fault.New(codes.FailedPrecondition, sandboxv1.ErrorReason_ERROR_REASON_PORT_CLOSED,
			fmt.Sprintf("no program in the sandbox listens on port %d of a loopback address; start one, or wait until it listens", port), metadata).Because(err)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fault.New(codes.FailedPrecondition, sandboxv1.ErrorReason_ERROR_REASON_PORT_CLOSED,
			fmt.Sprintf("the program on port %d did not accept the connection within %s", port, dialTimeout), metadata).Because(err)
	case errors.Is(err, unix.ECONNRESET):
		return resetFault(port, err)
	default:
		return fault.New(codes.ResourceExhausted, sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_RESOURCES_EXHAUSTED,
			fmt.Sprintf("cannot connect to port %d: %s", port, err), nil).Retry(time.Second).Because(err)
	}
}

func resetFault(port int32, cause error) error {
	text := fmt.Sprintf("the program on port %d reset the connection", port)
	if !errors.Is(cause, unix.ECONNRESET) && !errors.Is(cause, unix.EPIPE) {
		text = fmt.Sprintf("the connection to port %d broke: %s", port, cause)
	}
	return fault.New(codes.Aborted, sandboxv1.ErrorReason_ERROR_REASON_CONNECTION_RESET, text,
		map[string]string{"port": strconv.Itoa(int(port))}).Because(cause)
}

func invalid(field, text string) error {
	return fault.New(codes.InvalidArgument, sandboxv1.ErrorReason_ERROR_REASON_REQUEST_INVALID, field+": "+text, nil).Field(field)
}
