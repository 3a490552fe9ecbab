package kube

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/streaming/sealed"
)

// PodConns are the connections to agents that listen at a port of their pods. A
// pod's network may vanish before its last packets are sent, so the deletion of a
// pod ends its connections here as well. The zero value is usable.
type PodConns struct {
	connectTime time.Duration // 0: podDialTime
	listenWait  time.Duration // 0: podListenWait

	mu     sync.Mutex
	closed bool
	open   map[*podConn]struct{}
}

type podConn struct {
	net.Conn
	pod types.UID
	all *PodConns
}

// Close implements net.Conn. It sends no TLS alert: a peer that does not read could
// delay that.
func (c *podConn) Close() error {
	c.all.mu.Lock()
	delete(c.all.open, c)
	c.all.mu.Unlock()
	return c.below().Close()
}

// below is the connection under TLS.
func (c *podConn) below() net.Conn {
	if over, ok := c.Conn.(*tls.Conn); ok {
		return over.NetConn()
	}
	return c.Conn
}

// Dial connects to the agent at a pod's port and returns when the agent has proved
// its identity. The error wraps ErrUnavailable or ErrForbidden and names the
// remedy.
func (a *PodConns) Dial(ctx context.Context, pod *corev1.Pod, port int32, s sealed.Secret) (net.Conn, error) {
	return a.register(pod, func() (net.Conn, error) { return a.dial(ctx, pod, port, s) })
}

// DialNew is Dial for an agent that may not listen yet.
func (a *PodConns) DialNew(ctx context.Context, pod *corev1.Pod, port int32, s sealed.Secret) (net.Conn, error) {
	return a.register(pod, func() (net.Conn, error) {
		wait := cmp.Or(a.listenWait, podListenWait)
		until := time.Now().Add(wait)
		for pause := podListenRetry; ; pause = min(2*pause, podListenRetryMax) {
			conn, err := a.dial(ctx, pod, port, s)
			switch {
			case !refused(err) || ctx.Err() != nil:
				return conn, err
			case time.Now().After(until):
				return nil, fmt.Errorf("%w within %v: %w", errOutOfReach, wait, err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	})
}

func (a *PodConns) dial(ctx context.Context, pod *corev1.Pod, port int32, s sealed.Secret) (net.Conn, error) {
	failed := errNoAddress
	for _, at := range addresses(pod, port) {
		conn, err := dialSealed(ctx, at, s, cmp.Or(a.connectTime, podDialTime))
		if err == nil {
			return conn, nil
		}
		if failed = err; ctx.Err() != nil {
			return nil, fmt.Errorf("reach pod %s/%s: %w", pod.Namespace, pod.Name, context.Cause(ctx))
		}
	}
	if !errors.Is(failed, providers.ErrForbidden) {
		failed = fmt.Errorf("%w: %w", failed, providers.ErrUnavailable)
	}
	return nil, fmt.Errorf("the agent of pod %s/%s: %w", pod.Namespace, pod.Name, failed)
}

func (a *PodConns) register(pod *corev1.Pod, dial func() (net.Conn, error)) (net.Conn, error) {
	conn, err := dial()
	if err != nil {
		return nil, err
	}
	c := &podConn{Conn: conn, pod: pod.UID, all: a}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		_ = conn.Close()
		return nil, fmt.Errorf("reach pod %s/%s: %w: %w", pod.Namespace, pod.Name, net.ErrClosed, providers.ErrUnavailable)
	}
	if a.open == nil {
		a.open = make(map[*podConn]struct{})
	}
	a.open[c] = struct{}{}
	return c, nil
}

// Drop ends the connections to a pod that is gone, as its agent would have done:
// their users see the end and close them.
func (a *PodConns) Drop(pod types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range a.open {
		if c.pod == pod {
			c.shutDown()
		}
	}
}

func (c *podConn) shutDown() {
	if below, ok := c.below().(*net.TCPConn); ok {
		_ = below.CloseRead()
		_ = below.CloseWrite()
	}
}

// Close closes all connections, also those under way.
func (a *PodConns) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for c := range a.open {
		_ = c.below().Close()
	}
	clear(a.open)
}
