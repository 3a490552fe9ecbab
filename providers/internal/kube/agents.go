package kube

import (
	"context"
	"log/slog"
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
// pod's address does not lead to the agent, and uses exec for all pods of the
// group for some minutes.
func (a *Agents) Dial(ctx context.Context, to Agent) (net.Conn, error) {
	if a.Transport(to.Port, to.Group) == TransportPodIP {
		conn, err := a.dialPod(ctx, to)
		if err == nil || a.transport != TransportAuto || ctx.Err() != nil {
			return conn, err
		}
		a.fallBack(ctx, to, err)
	}
	return a.executor.Tunnel(ctx, Container{Namespace: to.Pod.Namespace, Pod: to.Pod.Name, Name: to.Container}, to.Command)
}

func (a *Agents) dialPod(ctx context.Context, to Agent) (net.Conn, error) {
	secret, err := to.Secret(ctx)
	if err != nil {
		return nil, err
	}
	if to.Starting {
		return a.conns.DialNew(ctx, to.Pod, to.Port, secret)
	}
	return a.conns.Dial(ctx, to.Pod, to.Port, secret)
}

func (a *Agents) fallBack(ctx context.Context, to Agent, err error) {
	if !OutOfReach(err) {
		a.log.DebugContext(ctx, "an agent is reached by exec", "pod", to.Pod.Name, "error", err)
		return
	}
	a.mu.Lock()
	_, known := a.unreachable[to.Group]
	a.unreachable[to.Group] = time.Now().Add(unreachableTime)
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
