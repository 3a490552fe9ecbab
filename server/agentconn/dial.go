package agentconn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/sandgate/sandgate/agent/protocol"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/limit"
	"github.com/sandgate/sandgate/server/policy"
)

// Window sizes are static: gRPC's estimate starts at 64 KiB and costs the first
// megabytes of every stream.
const (
	// StreamWindow is the window of a caller's stream: what an agent that does not
	// read can make the server hold.
	StreamWindow = 1 << 20
	ConnWindow   = 16 << 20
	// agentWindow is the window of an agent's stream: with two messages on their way,
	// what a caller that does not read can make the server hold. With 1 MiB, output
	// was 5 to 15 % faster and 100 such streams took 150 MiB more.
	agentWindow = 256 << 10
)

// ReadBuffer is the size of gRPC's buffers, smallReadBuffer that of small connections.
const (
	ReadBuffer      = 64 << 10
	smallReadBuffer = 16 << 10
)

const (
	// writeBuffer is two whole messages of an exec stream on Kubernetes, without a
	// small rest.
	writeBuffer = 2 * (32<<10 - 16)
	// MaxReply bounds unary replies of agents, which limit themselves to 3 MiB.
	// Stream messages have a smaller bound.
	MaxReply = 4 << 20
	// maxMetadata bounds the headers of one reply, and its trailers, which hold its
	// status. gRPC's default is 16 MiB. The texts of agents' errors fit.
	maxMetadata = 64 << 10
)

// A connection without traffic for keepaliveTime is pinged, and dead without an
// answer within keepaliveTimeout.
const (
	keepaliveTime    = 20 * time.Second
	keepaliveTimeout = 10 * time.Second
)

// dial looks the sandbox up unless known is given, dials its agent unless raw is
// given, and shakes hands. It owns raw, and closes it on an error.
func (s *Set) dial(ctx context.Context, key Key, known *providers.Info, raw net.Conn) (c *Conn, err error) {
	defer func() {
		if err != nil && raw != nil {
			_ = raw.Close()
		}
	}()
	var info providers.Info
	if known != nil {
		info = *known
	} else {
		if info, err = s.Lookup(ctx, key); err != nil {
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
		raw, err = s.cfg.Provider.Dial(ctx, key.Name)
	}
	if err != nil {
		err = fmt.Errorf("dial the agent: %w", err)
		if errors.Is(err, providers.ErrUnavailable) {
			return nil, fault.AgentUnavailable(err)
		}
		return nil, err
	}
	c = &Conn{Key: key, Incarnation: info.Incarnation, Policies: policies,
		pipe: &pipe{Conn: raw, dead: make(chan struct{})}, Activity: Activity{Writing: limit.New(1)}}
	raw = nil // the pipe owns it
	c.SetInfo(info)
	if c.client, err = s.newClient(c.pipe); err != nil {
		return nil, errors.Join(err, c.pipe.Close())
	}
	c.Agent = agentv1.NewAgentServiceClient(newBoundedReplies(c.client))
	if err := c.shakeHands(ctx, s.cfg); err != nil {
		c.Cut()
		if errors.Is(err, ErrBroken) {
			// The connection broke before it carried a request.
			return nil, fault.AgentUnavailable(errors.New(err.Error()))
		}
		return nil, err
	}
	c.lastUsed.Store(time.Now().UnixNano())
	c.Activity.Written.Store(info.LastActivity.UnixNano())
	c.Activity.Confirmed.Store(info.LastActivity.UnixNano())
	return c, nil
}

// Lookup returns a sandbox if it is the tenant's.
func (s *Set) Lookup(ctx context.Context, key Key) (providers.Info, error) {
	info, err := s.cfg.Provider.Get(ctx, key.Name)
	if err != nil {
		return providers.Info{}, err
	}
	if info.Spec.Tenant != key.Tenant || info.Spec.ID != key.ID {
		return providers.Info{}, fmt.Errorf("sandbox %q: %w", key.ID, providers.ErrNotFound)
	}
	return info, nil
}

func (s *Set) newClient(conn *pipe) (*grpc.ClientConn, error) {
	readBuffer := ReadBuffer
	if s.cfg.Small {
		readBuffer = smallReadBuffer
	}
	var used atomic.Bool
	dial := func(context.Context, string) (net.Conn, error) {
		if used.Swap(true) {
			return nil, net.ErrClosed
		}
		return conn, nil
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(dial),
		grpc.WithIdleTimeout(0),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithWriteBufferSize(writeBuffer),
		grpc.WithReadBufferSize(readBuffer),
		grpc.WithStaticStreamWindowSize(agentWindow),
		grpc.WithStaticConnWindowSize(ConnWindow),
		grpc.WithMaxHeaderListSize(maxMetadata),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: keepaliveTime, Timeout: keepaliveTimeout, PermitWithoutStream: true,
		}),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(NewCodec()),
			grpc.MaxCallRecvMsgSize(MaxReply),
			grpc.MaxCallSendMsgSize(s.cfg.MaxRequest+maxEvent),
		),
	}
	if s.cfg.Stats != nil {
		opts = append(opts, grpc.WithStatsHandler(s.cfg.Stats))
	}
	return grpc.NewClient("passthrough:///agent", opts...)
}

// shakeHands checks that the agent speaks this protocol and is of the incarnation
// that the provider knows.
func (c *Conn) shakeHands(ctx context.Context, cfg Config) error {
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.Hello, fault.AgentUnavailable(
		fmt.Errorf("no answer to the first message within %s", cfg.Hello)))
	defer cancel()
	minor := cfg.ProtocolMinor
	hello, err := c.Agent.Hello(ctx, &agentv1.HelloRequest{ServerVersion: cfg.Version, ProtocolMinor: minor})
	if err != nil {
		return Error(ctx, err)
	}
	if m := hello.GetProtocolMinor(); m < 1 || m < minor-1 || m > minor+1 {
		advice := "recreate the sandbox"
		if m > minor {
			advice = "upgrade this server, or recreate the sandbox"
		}
		return fault.New(sandboxv1.ErrorReason_ERROR_REASON_AGENT_VERSION_UNSUPPORTED,
			"the sandbox's agent %s speaks protocol minor %d, this server %s minor %d; %s",
			fault.Bounded(hello.GetAgentVersion()), m, cfg.Version, minor, advice).
			With("agent_version", fault.Bounded(hello.GetAgentVersion())).With("server_version", cfg.Version)
	}
	c.Deduplicates = slices.Contains(hello.GetCapabilities(), protocol.CallIDCapability)
	if hello.GetIncarnation() != c.Incarnation {
		return fault.Replaced(c.Key.ID, c.Incarnation).WithCause(providers.ErrReplaced)
	}
	return nil
}
