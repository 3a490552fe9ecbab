package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sandgate/sandgate/streaming/sealed"
)

// ListenAddress is where an agent listens, for its --listen-tcp.
func ListenAddress(port int32) string { return ":" + strconv.Itoa(int(port)) }

const (
	// podDialTime bounds a connection to a pod's port, and podGreetTime the
	// handshake: the kernel accepts connections also for an agent that waits for a
	// processor on a busy node.
	podDialTime  = 5 * time.Second
	podGreetTime = 10 * time.Second
	// podListenWait bounds the time until an agent that was just started listens.
	podListenWait     = 5 * time.Second
	podListenRetry    = 20 * time.Millisecond
	podListenRetryMax = 320 * time.Millisecond
)

// podDialer lets the kernel detect within half a minute that a pod has vanished.
var podDialer = &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
	Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3,
}}

var (
	// errOutOfReach is a pod's port that does not answer this server.
	errOutOfReach = errors.New("cannot be reached from the server")
	// errNoRoute marks the errors of a network that does not connect to the port.
	errNoRoute   = errors.New("no connection")
	errNoAddress = errors.New("its pod has no address yet")
)

// OutOfReach reports whether an error of a dial is that the pod's port cannot be
// reached: an early retry will not help.
func OutOfReach(err error) bool { return errors.Is(err, errOutOfReach) }

// addresses are where an agent that listens at a port of its pod can be reached.
func addresses(pod *corev1.Pod, port int32) []string {
	var out []string
	for _, ip := range pod.Status.PodIPs {
		if _, err := netip.ParseAddr(ip.IP); err == nil {
			out = append(out, net.JoinHostPort(ip.IP, strconv.Itoa(int(port))))
		}
	}
	return out
}

// dialSealed connects to an address and returns when the agent there has proved
// that it is the expected one.
func dialSealed(ctx context.Context, at string, s sealed.Secret, connectTime time.Duration) (net.Conn, error) {
	dialing, cancel := context.WithTimeoutCause(ctx, connectTime, errOutOfReach)
	defer cancel()
	raw, err := podDialer.DialContext(dialing, "tcp", at)
	var conn net.Conn
	if err == nil {
		greeting, cancel := context.WithTimeoutCause(ctx, podGreetTime, errOutOfReach)
		defer cancel()
		conn, err = sealed.Client(greeting, raw, s)
	} else if outOfReach(err) {
		err = fmt.Errorf("%w: %w", errNoRoute, err)
	}
	switch {
	case err == nil:
		return conn, nil
	case errors.Is(err, sealed.ErrUnauthenticated):
		return nil, fmt.Errorf("what answers at %s is not its agent (%w); the address may belong to another pod by now", at, err)
	case refused(err):
		return nil, fmt.Errorf("nothing listens at %s, or a network policy rejects the server: %w", at, err)
	case ctx.Err() == nil && outOfReach(err):
		return nil, fmt.Errorf("%s %w (%w): the server must be where pods' addresses lead to pods, and a network policy must let it in at that port; else serve with the transport %s",
			at, errOutOfReach, err, TransportExec)
	default:
		return nil, err
	}
}

// refused reports whether nothing listens at the port.
func refused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

func outOfReach(err error) bool {
	var late net.Error
	return errors.Is(err, errOutOfReach) || errors.As(err, &late) && late.Timeout() ||
		errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)
}
