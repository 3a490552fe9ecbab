package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/streaming/sealed"
)

// The ways to an agent.
const (
	// WayExec joins the agent through the API server, by an exec stream.
	WayExec = "exec"
	// WayPodIP connects to the agent's port at the pod's own address.
	WayPodIP = "pod-ip"
)

// DefaultAgentPort is where agents listen that are reached by their pod's
// address.
const DefaultAgentPort = 7778

// CheckWay returns the way and the port to use. The error wraps ErrInvalid.
func CheckWay(way string, port int32) (string, int32, error) {
	switch way {
	case "":
		way = WayExec
	case WayExec, WayPodIP:
	default:
		return "", 0, fmt.Errorf("way to the agent: %q is neither %s nor %s: %w", way, WayExec, WayPodIP, providers.ErrInvalid)
	}
	if port == 0 {
		port = DefaultAgentPort
	}
	if errs := validation.IsValidPortNum(int(port)); len(errs) > 0 {
		return "", 0, fmt.Errorf("agent port %d: %s: %w", port, strings.Join(errs, "; "), providers.ErrInvalid)
	}
	if port < 1024 {
		return "", 0, fmt.Errorf("agent port %d: agents run without the privilege to listen below 1024: %w", port, providers.ErrInvalid)
	}
	return way, port, nil
}

const (
	// podDialTime bounds a connection to one address of a pod.
	podDialTime = 5 * time.Second
	// podListenWait is how long an agent that was just started may not listen.
	podListenWait  = 5 * time.Second
	podListenRetry = 20 * time.Millisecond
)

// podDialer has the kernel find out in half a minute that a pod is gone without
// a word.
var podDialer = &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
	Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3,
}}

var (
	// errOutOfReach: the pod's address does not answer from here.
	errOutOfReach = errors.New("its address cannot be reached from the server")
	errNoAddress  = errors.New("its pod has no address yet")
)

// OutOfReach reports whether an error of a dial says that the pod's address
// cannot be reached: trying again soon will not help.
func OutOfReach(err error) bool { return errors.Is(err, errOutOfReach) }

// dialPod connects to the agent at a pod's address and returns when it has
// proved that it is the one that was meant. The error wraps ErrUnavailable, and
// says what lets the server in.
func dialPod(ctx context.Context, pod *corev1.Pod, port int32, s sealed.Secret) (net.Conn, error) {
	failed := errNoAddress
	for _, ip := range podAddresses(pod) {
		conn, err := dialSealed(ctx, net.JoinHostPort(ip, strconv.Itoa(int(port))), s)
		if err == nil {
			return conn, nil
		}
		if failed = err; ctx.Err() != nil {
			return nil, fmt.Errorf("reach pod %s/%s: %w", pod.Namespace, pod.Name, context.Cause(ctx))
		}
	}
	return nil, fmt.Errorf("the agent of pod %s/%s, by the pod's address: %w: %w", pod.Namespace, pod.Name, failed, providers.ErrUnavailable)
}

// dialNewPod is dialPod for a pod whose agent may not listen yet.
func dialNewPod(ctx context.Context, pod *corev1.Pod, port int32, s sealed.Secret) (net.Conn, error) {
	for until := time.Now().Add(podListenWait); ; {
		conn, err := dialPod(ctx, pod, port, s)
		if !errors.Is(err, syscall.ECONNREFUSED) || ctx.Err() != nil || time.Now().After(until) {
			return conn, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(podListenRetry):
		}
	}
}

func podAddresses(pod *corev1.Pod) []string {
	var out []string
	for _, ip := range pod.Status.PodIPs {
		if _, err := netip.ParseAddr(ip.IP); err == nil {
			out = append(out, ip.IP)
		}
	}
	return out
}

func dialSealed(ctx context.Context, address string, s sealed.Secret) (net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, podDialTime, errOutOfReach)
	defer cancel()
	raw, err := podDialer.DialContext(ctx, "tcp", address)
	var conn net.Conn
	if err == nil {
		conn, err = sealed.Client(ctx, raw, s)
	}
	switch {
	case err == nil:
		return conn, nil
	case errors.Is(err, sealed.ErrStranger):
		return nil, fmt.Errorf("what answers at %s is not its agent (%w); the address may belong to another pod by now", address, err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("nothing listens at %s, or a network policy rejects the server: %w", address, err)
	case outOfReach(ctx, err):
		return nil, fmt.Errorf("%s: %w (%w): the server must be where pods' addresses lead to pods, and a network policy must let it in at that port; else serve with the way %s",
			address, errOutOfReach, err, WayExec)
	default:
		return nil, err
	}
}

func outOfReach(ctx context.Context, err error) bool {
	var late net.Error
	return errors.Is(context.Cause(ctx), errOutOfReach) || errors.As(err, &late) && late.Timeout() ||
		errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)
}
