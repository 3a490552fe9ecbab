package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sandgate/sandgate/streaming/sealed"
)

const (
	// autoConnectTime bounds a connection to a pod's port where exec is tried
	// next.
	autoConnectTime = 2 * time.Second
	// unreachableTime is how long pods of a group are reached by exec after one of
	// them could not be reached at its address.
	unreachableTime = 5 * time.Minute
	// warnInterval is the least time between warnings about a peer or a secret.
	warnInterval = time.Minute
)

// Agents connects to agents by a transport. It is safe for concurrent use.
type Agents struct {
	executor  *Executor
	transport Transport
	log       *slog.Logger
	conns     PodConns

	mu sync.Mutex
	// unreachable holds the groups of pods that exec reaches, and until when.
	unreachable map[string]time.Time
	warned      time.Time // the last warning about a peer or a secret
}

// NewAgents makes an Agents. The transport must have been resolved.
func NewAgents(executor *Executor, transport Transport, log *slog.Logger) *Agents {
	a := &Agents{executor: executor, transport: transport, log: log, unreachable: make(map[string]time.Time)}
	if transport == TransportAuto {
		a.conns.connectTime = autoConnectTime
	}
	return a
}

// Agent is an agent in a pod.
type Agent struct {
	Pod *corev1.Pod
	// Port is where the agent listens; 0: nowhere. Such an agent is reached by
	// exec, whatever the transport.
	Port int32
	// Secret reads the secret of an agent that listens.
	Secret func(ctx context.Context) (sealed.Secret, error)
	// Starting is true for an agent that may not listen yet.
	Starting bool
	// Group names the pods to which the same network policies apply.
	Group string
	// Container and Command join an exec to the agent.
	Container string
	Command   []string
}

// Dial connects to an agent. With TransportAuto it falls back to exec where the
// pod's address does not lead to the agent. If exec shows that the agent runs, the
// network in between is to blame, and exec reaches all pods of the group for some
// minutes.
func (a *Agents) Dial(ctx context.Context, to Agent) (net.Conn, error) {
	if a.Transport(to.Port, to.Group) == TransportExec {
		return a.tunnel(ctx, to)
	}
	conn, err := a.dialPod(ctx, to)
	if err == nil || a.transport != TransportAuto || ctx.Err() != nil {
		return conn, err
	}
	a.warn(ctx, to, err)
	tunnel, failed := a.tunnel(ctx, to)
	if failed != nil {
		return nil, failed
	}
	if to.Starting && refused(err) {
		// An agent that answers listens at its port as well.
		to.Starting = false
		limited, cancel := context.WithTimeout(ctx, autoConnectTime)
		conn, err = a.dialPod(limited, to)
		cancel()
		if err == nil {
			_ = tunnel.Close()
			return conn, nil
		}
		if refused(err) {
			err = fmt.Errorf("%w: %w", errNoRoute, err)
		}
	}
	if errors.Is(err, errNoRoute) {
		a.fallBack(ctx, to, err)
	}
	return tunnel, nil
}

func (a *Agents) tunnel(ctx context.Context, to Agent) (net.Conn, error) {
	return a.executor.Tunnel(ctx, Container{Namespace: to.Pod.Namespace, Pod: to.Pod.Name, Name: to.Container}, to.Command)
}

// secretError is a secret that could not be read.
type secretError struct{ error }

func (e secretError) Unwrap() error { return e.error }

func (a *Agents) dialPod(ctx context.Context, to Agent) (net.Conn, error) {
	secret, err := to.Secret(ctx)
	if err != nil {
		return nil, secretError{err}
	}
	if to.Starting {
		return a.conns.DialNew(ctx, to.Pod, to.Port, secret)
	}
	return a.conns.Dial(ctx, to.Pod, to.Port, secret)
}

// warn logs that a pod's address does not lead to its agent. A peer that is not the
// agent, and a secret that cannot be read, need an operator's attention.
func (a *Agents) warn(ctx context.Context, to Agent, err error) {
	level := slog.LevelDebug
	if _, secret := errors.AsType[secretError](err); secret || errors.Is(err, sealed.ErrUnauthenticated) {
		a.mu.Lock()
		if now := time.Now(); now.Sub(a.warned) >= warnInterval {
			a.warned, level = now, slog.LevelWarn
		}
		a.mu.Unlock()
	}
	a.log.Log(ctx, level, "an agent is not reached at its pod's address; exec is tried", "pod", to.Pod.Name, "error", err)
}

func (a *Agents) fallBack(ctx context.Context, to Agent, err error) {
	now := time.Now()
	a.mu.Lock()
	maps.DeleteFunc(a.unreachable, func(_ string, until time.Time) bool { return !now.Before(until) })
	_, known := a.unreachable[to.Group]
	a.unreachable[to.Group] = now.Add(unreachableTime)
	a.mu.Unlock()
	if !known {
		a.log.WarnContext(ctx, "agents cannot be reached at their pods' addresses and are reached by exec", "pod", to.Pod.Name, "group", to.Group, "error", err)
	}
}

// Transport returns the transport to an agent that listens at a port, or at
// none, in a pod of a group.
func (a *Agents) Transport(port int32, group string) Transport {
	if port == 0 || !a.transport.Listens() {
		return TransportExec
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Now().Before(a.unreachable[group]) {
		return TransportExec
	}
	return TransportPodIP
}

// TransportOf returns the transport of a connection that Dial made.
func TransportOf(conn net.Conn) Transport {
	if _, ok := conn.(*podConn); ok {
		return TransportPodIP
	}
	return TransportExec
}

// Drop ends the connections to the port of a pod that is gone.
func (a *Agents) Drop(pod types.UID) { a.conns.Drop(pod) }

// Close closes the connections to ports. Exec streams end with the Executor.
func (a *Agents) Close() { a.conns.Close() }
