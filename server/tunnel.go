package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/policy"
)

// protocolMinor is the version of the agent protocol that this server speaks.
// Agents one minor apart are served: an older one because sandboxes outlive a
// server's upgrade, a newer one because during it other replicas are newer.
const protocolMinor = 1

// box is where a caller's sandbox is.
type box struct{ tenant, id, name string }

// tunnel is one connection to one incarnation of a sandbox's agent. It never
// redials: when its connection breaks it is dead, and the next call opens
// another, with another look at the incarnation.
type tunnel struct {
	box         box
	incarnation string
	// policies are the template's and the sandbox's, from Spec.Access.
	policies []*sandboxv1.AccessPolicy
	agent    agentv1.AgentServiceClient
	client   *grpc.ClientConn
	conn     *tunnelConn
	// replays is true when the agent carries out a call with an id only once.
	replays bool

	info atomic.Pointer[providers.Info]
	// users counts the running calls, and looks what the server itself asks. A
	// look keeps the tunnel open but is no activity of the sandbox.
	users, looks atomic.Int32
	// lastCall is the end of the last call, and lastUsed that of the last call or
	// look, both in unix nanoseconds.
	lastCall, lastUsed atomic.Int64
	// written is the last activity that the provider knows or is being told, and
	// confirmed what it knows for sure, both in unix nanoseconds.
	written, confirmed atomic.Int64
	// renewing holds a value while a call writes activity, and renewFailed is when
	// that last failed, in unix nanoseconds.
	renewing    chan struct{}
	renewFailed atomic.Int64
}

// tunnelConn tells when gRPC gave the connection up.
type tunnelConn struct {
	net.Conn
	once sync.Once
	dead chan struct{}
	err  error
}

func (c *tunnelConn) Close() error {
	c.once.Do(func() {
		c.err = c.Conn.Close()
		close(c.dead)
	})
	return c.err
}

func (t *tunnel) alive() bool {
	select {
	case <-t.conn.dead:
		return false
	default:
		return true
	}
}

// cut breaks the connection. The byte stream goes first, so that the agent
// sees a broken pipe and not a set of cancelled calls.
func (t *tunnel) cut() {
	_ = t.conn.Close()
	_ = t.client.Close()
}

func (t *tunnel) beginCall() {
	t.users.Add(1)
	t.called()
}

// release must be called once for every tunnel that was got for a call.
func (t *tunnel) release() {
	t.called()
	t.users.Add(-1)
}

func (t *tunnel) called() {
	now := time.Now().UnixNano()
	t.lastCall.Store(now)
	t.lastUsed.Store(now)
}

func (t *tunnel) beginLook() {
	t.looks.Add(1)
	t.lastUsed.Store(time.Now().UnixNano())
}

// endLook must be called once for every tunnel that was got for a look.
func (t *tunnel) endLook() {
	t.lastUsed.Store(time.Now().UnixNano())
	t.looks.Add(-1)
}

// openTunnel looks the sandbox up unless it is known, dials its agent unless
// there is a connection, and shakes hands. It takes over the connection, also on
// an error.
func (ts *tunnels) openTunnel(ctx context.Context, b box, known *providers.Info, raw net.Conn) (t *tunnel, err error) {
	defer func() {
		if err != nil && raw != nil {
			_ = raw.Close()
		}
	}()
	var info providers.Info
	if known != nil {
		info = *known
	} else {
		if info, err = ts.lookup(ctx, b); err != nil {
			return nil, err
		}
	}
	if info.State != providers.StateActive {
		return nil, fault.NotActive(info)
	}
	policies, err := policy.DecodeAccess(info.Spec.Access)
	if err != nil {
		return nil, err
	}
	if raw == nil {
		raw, err = ts.provider.Dial(ctx, b.name)
	}
	if err != nil {
		err = fmt.Errorf("dial the agent: %w", err)
		if errors.Is(err, providers.ErrUnavailable) {
			return nil, fault.AgentUnavailable(err)
		}
		return nil, err
	}
	t = &tunnel{box: b, incarnation: info.Incarnation, policies: policies,
		conn: &tunnelConn{Conn: raw, dead: make(chan struct{})}, renewing: make(chan struct{}, 1)}
	t.info.Store(&info)
	if t.client, err = ts.newClient(t.conn); err != nil {
		return nil, errors.Join(err, t.conn.Close())
	}
	t.agent = agentv1.NewAgentServiceClient(newOneReply(t.client))
	if err := t.shakeHands(ctx, ts.version, ts.minor, ts.timing.Hello); err != nil {
		t.cut()
		if errors.Is(err, errPipe) {
			// The pipe broke before anything was asked of it.
			return nil, fault.AgentUnavailable(errors.New(err.Error()))
		}
		return nil, err
	}
	now := time.Now().UnixNano()
	t.lastUsed.Store(now)
	t.written.Store(info.LastActivity.UnixNano())
	t.confirmed.Store(info.LastActivity.UnixNano())
	return t, nil
}

// lookup finds a sandbox and makes sure that it is the tenant's.
func (ts *tunnels) lookup(ctx context.Context, b box) (providers.Info, error) {
	info, err := ts.provider.Get(ctx, b.name)
	if err != nil {
		return providers.Info{}, err
	}
	if info.Spec.Tenant != b.tenant || info.Spec.ID != b.id {
		return providers.Info{}, fmt.Errorf("sandbox %q: %w", b.id, providers.ErrNotFound)
	}
	return info, nil
}

func (ts *tunnels) newClient(conn *tunnelConn) (*grpc.ClientConn, error) {
	var used atomic.Bool
	dial := func(context.Context, string) (net.Conn, error) {
		if used.Swap(true) {
			return nil, net.ErrClosed
		}
		return conn, nil
	}
	return grpc.NewClient("passthrough:///agent",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(dial),
		grpc.WithIdleTimeout(0),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithWriteBufferSize(tunnelBuffer),
		grpc.WithReadBufferSize(writeBuffer),
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: tunnelSilence, Timeout: tunnelSignOfLife, PermitWithoutStream: true,
		}),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(ts.codec),
			grpc.MaxCallRecvMsgSize(maxAgentReply),
			grpc.MaxCallSendMsgSize(ts.maxSend),
		),
	)
}

// A tunnel that brings nothing for tunnelSilence is asked for a sign of life, and
// is dead without one within tunnelSignOfLife.
const (
	tunnelSilence    = 20 * time.Second
	tunnelSignOfLife = 10 * time.Second
)

// tunnelBuffer is what is written at once: two whole messages of an exec stream
// on Kubernetes, and no small rest.
const tunnelBuffer = 2 * (32<<10 - 16)

// shakeHands checks that the agent speaks our language and is the incarnation
// that the provider knows.
func (t *tunnel) shakeHands(ctx context.Context, version string, minor int32, limit time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fault.AgentUnavailable(
		fmt.Errorf("no answer to the first message within %s", limit)))
	defer cancel()
	hello, err := t.agent.Hello(ctx, &agentv1.HelloRequest{ServerVersion: version, ProtocolMinor: minor})
	if err != nil {
		return agentError(ctx, err)
	}
	if m := hello.GetProtocolMinor(); m < 1 || m < minor-1 || m > minor+1 {
		advice := "make the sandbox anew"
		if m > minor {
			advice = "upgrade this server, or make the sandbox anew"
		}
		return fault.New(sandboxv1.ErrorReason_ERROR_REASON_AGENT_VERSION_UNSUPPORTED,
			"the sandbox's agent %s speaks protocol minor %d, this server %s minor %d; %s",
			fault.Bounded(hello.GetAgentVersion()), m, version, minor, advice).
			With("agent_version", fault.Bounded(hello.GetAgentVersion())).With("server_version", version)
	}
	t.replays = slices.Contains(hello.GetCapabilities(), callIDCapability)
	if hello.GetIncarnation() != t.incarnation {
		return fault.Replaced(t.box.id, t.incarnation).WithCause(providers.ErrReplaced)
	}
	return nil
}

// maxAgentReply bounds unary replies of agents, which themselves stop at 3 MiB.
// Stream messages have a smaller bound of their own.
const maxAgentReply = 4 << 20
