package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/carrier"
	"github.com/sandgate/sandgate/server/egress"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/lifetime"
	"github.com/sandgate/sandgate/server/quota"
)

// streamWorkers is the number of goroutines that wait for calls. A call needs
// more stack than a new goroutine has, and growing it costs 2 % of a short
// command's call. Calls beyond that number get goroutines of their own.
const streamWorkers = 32

// Server serves SandboxService in front of one provider.
type Server struct {
	sandboxv1.UnimplementedSandboxServiceServer

	cfg         Config
	log         *slog.Logger
	provider    providers.Provider
	described   providers.Description
	current     atomic.Pointer[settings]
	codec       agentconn.Codec
	grpc        *grpc.Server
	health      *health.Server
	agents      *agentconn.Set
	carrier     *carrier.Carrier
	authorities *egress.Authorities // nil without a spec secret
	activity    *lifetime.Activity
	reaper      *lifetime.Reaper
	expired     *lifetime.Tombstones
	services    map[string]grpc.ServiceInfo
	conns       *connLimiter
	running     *running
	clock       *lifetime.Clock
	pools       *[]providers.Pool // that the provider keeps; nil: unknown. Of New and Reload
	book        *quota.Book
	streams     *quota.Streams
	creations   *sharedSlots // nil: no bound
	forwards    *sharedSlots
	egress      *sharedSlots
	metrics     *metrics
	tracing     tracing

	// auditLost counts the audit records that failed in a row.
	auditLost atomic.Int64
	refusals  *refusals

	// unready: the provider does not work. leaving: Shutdown was called.
	unready, leaving atomic.Bool

	stopping atomic.Bool
	unary    sync.RWMutex // held for reading by each unary call
	// halt ends the background work.
	halt     chan struct{}
	haltOnce sync.Once
	work     sync.WaitGroup
}

var _ sandboxv1.SandboxServiceServer = (*Server)(nil)

// ErrExposed is returned by Serve for a listener that other machines could
// reach without TLS and authentication.
var ErrExposed = errors.New("refusing to listen beyond this machine without TLS and authentication; " +
	"set both up, listen on loopback or a unix socket, or say --insecure")

// ErrLimits is returned by New if limits are required and the provider does not
// enforce one or a template has none.
var ErrLimits = errors.New("limits are required")

// describeTimeout bounds Provider.Describe at start.
const describeTimeout = 30 * time.Second

// New returns a server that is ready to serve.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, log: cfg.Logger, provider: cfg.Provider, codec: agentconn.NewCodec(),
		health: health.NewServer(), halt: make(chan struct{}), expired: lifetime.NewTombstones(),
		conns: newConnLimiter(), running: newRunning(), refusals: newRefusals(),
		tracing: newTracing(cfg.Tracer), clock: lifetime.NewClock(cfg.readClock),
		book: quota.NewBook(cfg.Provider, cfg.Quotas, cfg.Limits.CreateTimeout), streams: quota.NewStreams(cfg.Quotas),
	}
	if len(cfg.SpecSecret) > 0 {
		if s.authorities, err = egress.NewAuthorities(cfg.SpecSecret); err != nil {
			return nil, fmt.Errorf("server: spec secret: %w", err)
		}
	}
	// An error of the configuration comes before one of the provider.
	allowed, err := s.newPolicy(cfg)
	if err != nil {
		return nil, err
	}
	// No caller's context applies here.
	ctx, cancel := context.WithTimeout(context.Background(), describeTimeout)
	defer cancel()
	if s.described, err = cfg.Provider.Describe(ctx); err != nil {
		return nil, fmt.Errorf("server: the provider cannot be used: %w", err)
	}
	logMissing(s.log, s.described)
	if cfg.RequireLimits {
		if err := requireLimits(s.described); err != nil {
			return nil, err
		}
	}
	if n := cmp.Or(cfg.Limits.MaxCreations, s.described.Creations); n > 0 {
		s.creations = newSharedSlots(n, cfg.Authenticator != nil)
	}
	s.forwards = newSharedSlots(cfg.Limits.MaxForwards, cfg.Authenticator != nil)
	s.egress = newSharedSlots(cfg.Limits.MaxEgressConnections, cfg.Authenticator != nil)
	rules, err := s.newSettings(cfg, allowed)
	if err != nil {
		return nil, err
	}
	s.current.Store(rules)
	// Pools fill in the background. A start that deletes much first may take
	// longer than Describe.
	if err := s.keepPools(context.WithoutCancel(ctx), rules.policy); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	s.metrics = newMetrics(cfg.Version, s.described.Name)
	s.metrics.registry.MustRegister(newStateCollector(s))
	s.agents = agentconn.New(agentconn.Config{
		Provider: cfg.Provider, Version: cfg.Version, ProtocolMinor: cfg.protocolMinor, MaxRequest: cfg.Limits.MaxMessageBytes,
		Hello: cfg.Timing.Hello, Idle: cfg.Timing.AgentIdle, OnDial: s.metrics.dialled, Stats: s.tracing.agentCalls(),
	})
	s.carrier = s.newCarrier()
	s.activity = lifetime.NewActivity(cfg.Provider, s.log)
	s.reaper = lifetime.NewReaper(lifetime.Config{
		Provider: cfg.Provider, Agents: s.agents, Clock: s.clock, Log: s.log, Expired: s.expired, Random: cfg.random,
		OnDelete:  func(info providers.Info) { s.book.Forget(info.Name, info.Incarnation) },
		OnExpire:  s.sandboxExpired,
		OnFailure: s.metrics.reapFailures.Inc,
	})

	unary, stream := s.chains()
	opts := []grpc.ServerOption{
		grpc.ForceServerCodecV2(s.codec),
		grpc.ChainUnaryInterceptor(unary...),
		grpc.ChainStreamInterceptor(stream...),
		grpc.UnknownServiceHandler(unknownMethod),
		grpc.MaxRecvMsgSize(oversizedFactor * cfg.Limits.MaxMessageBytes),
		grpc.InTapHandle(s.admit),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.StaticStreamWindowSize(agentconn.StreamWindow),
		grpc.StaticConnWindowSize(agentconn.ConnWindow),
		grpc.WriteBufferSize(agentconn.ReadBuffer),
		grpc.ReadBufferSize(agentconn.ReadBuffer),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: cfg.Timing.Keepalive, Timeout: cfg.Timing.KeepaliveTimeout,
			MaxConnectionAge: cfg.Timing.ConnectionAge}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	}
	opts = append(opts, s.tracing.calls()...)
	if cfg.TLS != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(cfg.TLS)))
	}
	s.grpc = grpc.NewServer(opts...)
	s.grpc.RegisterService(s.beforeRead(s.withAgentCalls(sandboxv1.SandboxService_ServiceDesc)), s)
	s.grpc.RegisterService(s.beforeRead(healthv1.Health_ServiceDesc), s.health)
	reflection.Register(s.grpc)
	s.services = s.grpc.GetServiceInfo()
	s.health.SetServingStatus(sandboxv1.SandboxService_ServiceDesc.ServiceName, healthv1.HealthCheckResponse_SERVING)

	s.work.Go(func() { s.background("maintain", s.maintain) })
	s.work.Go(func() { s.background("reap", s.reap) })
	if slices.Contains(s.described.Capabilities, providers.CapabilityNetworkProxy) {
		s.work.Go(func() { s.background("hold networks", s.holdNetworks) })
	}
	s.work.Go(func() { s.background("watch the provider", s.watchProvider) })
	if cfg.Authenticator != nil {
		s.work.Go(func() { s.background("recheck", s.recheck) })
	}
	s.work.Go(func() { s.background("count", s.count) })
	return s, nil
}

// oversizedFactor is how many times the limit a message may have and still receive
// an error with a reason. Beyond it gRPC rejects it by itself. The server reads
// only messages of authenticated callers, and decodes no oversized one.
const oversizedFactor = 4

// receiveTimeout bounds the time that the only message of a call may take.
const receiveTimeout = 2 * time.Minute

var errReceiveTimeout = fault.New(sandboxv1.ErrorReason_ERROR_REASON_CALL_DEADLINE_EXCEEDED,
	"the call's message did not arrive within %s", receiveTimeout)

// receive reads the only message of a call within receiveTimeout, and begins
// the call.
func (s *Server) receive(ctx context.Context, recv func(any) error, m any) error {
	late := time.AfterFunc(receiveTimeout, func() { callOf(ctx).cut(errReceiveTimeout) })
	defer late.Stop()
	if err := s.decode(recv, m); err != nil {
		return err
	}
	return s.begin(ctx, callOf(ctx), m)
}

// decode reads a message of a caller. Its errors have a reason, unlike gRPC's
// own: a message is too large or invalid.
func (s *Server) decode(recv func(any) error, m any) error {
	var fr agentconn.Frame
	if err := recv(&fr); err != nil {
		return err
	}
	defer fr.Free()
	if limit := s.cfg.Limits.MaxMessageBytes; fr.Data.Len() > limit {
		return fault.New(sandboxv1.ErrorReason_ERROR_REASON_MESSAGE_TOO_LARGE,
			"the message is larger than %d bytes; send content through Upload", limit).
			With("limit_bytes", strconv.Itoa(limit))
	}
	switch err := s.codec.Unmarshal(fr.Data, m); {
	case errors.Is(err, agentconn.ErrTooManyFields):
		return fault.New(sandboxv1.ErrorReason_ERROR_REASON_MESSAGE_TOO_LARGE, "the message has %v", err).
			With("limit_fields", strconv.Itoa(agentconn.MaxFields))
	case err != nil:
		return fault.New(sandboxv1.ErrorReason_ERROR_REASON_REQUEST_INVALID, "the message could not be decoded").WithCause(err)
	}
	return nil
}

func unknownMethod(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	return fault.New(sandboxv1.ErrorReason_ERROR_REASON_FEATURE_UNSUPPORTED,
		"this server does not know %s", fault.Bounded(method)).With("feature", fault.Bounded(method))
}

// Serve accepts calls until Shutdown and then returns nil. It may be called for
// several listeners. It rejects a listener that other machines could reach with
// ErrExposed, unless TLS and authentication are configured.
func (s *Server) Serve(l net.Listener) error {
	if !s.cfg.Insecure && reachable(l.Addr()) && (s.cfg.TLS == nil || s.cfg.Authenticator == nil) {
		return fmt.Errorf("%s: %w", l.Addr(), ErrExposed)
	}
	if s.cfg.Announce != nil {
		s.cfg.Announce(l.Addr())
	}
	if s.cfg.Authenticator != nil {
		l = s.conns.listener(l)
	}
	if err := s.grpc.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

func (s *Server) isStopping() bool { return s.stopping.Load() }

// unreadTime is how long callers may take to receive the ends of their streams.
const unreadTime = 3 * time.Second

// onlyUnread returns a channel that is closed when no unary call has run for
// unreadTime. With the connections to agents closed, streams have ended by then, but
// for those whose callers receive nothing: a status waits behind the messages before
// it.
func (s *Server) onlyUnread(graceful <-chan struct{}) <-chan struct{} {
	only := make(chan struct{})
	go func() {
		defer close(only)
		s.unary.Lock()
		s.unary.Unlock() //nolint:staticcheck // SA2001: it only waits for the calls that hold the lock
		select {
		case <-time.After(unreadTime):
		case <-graceful:
		}
	}()
	return only
}

// Shutdown fails health checks for Timing.LameDuck while the server serves as
// before. Then it stops accepting calls, lets running ones go on for
// Timing.Drain, and ends the rest with SERVER_SHUTTING_DOWN. It closes the
// connections to agents as a whole, not stream by stream: agents see a broken
// pipe, so their commands keep running and wait for the next server. A stream
// whose caller receives nothing is cut unreadTime later. Shutdown returns when nothing
// runs any more, at the latest when ctx ends.
func (s *Server) Shutdown(ctx context.Context) error {
	if first := !s.leaving.Swap(true); first {
		s.health.Shutdown()
		s.log.InfoContext(ctx, "stopping")
		select {
		case <-time.After(s.cfg.Timing.LameDuck):
		case <-ctx.Done():
		}
	}
	s.stopping.Store(true)
	s.haltOnce.Do(func() { close(s.halt) })

	graceful := make(chan struct{})
	go func() {
		defer close(graceful)
		s.grpc.GracefulStop()
	}()
	drain := time.NewTimer(s.cfg.Timing.Drain)
	defer drain.Stop()
	select {
	case <-graceful:
	case <-drain.C:
	case <-ctx.Done():
	}
	s.carrier.Close()
	s.agents.Close()
	select {
	case <-graceful:
	case <-s.onlyUnread(graceful):
	case <-ctx.Done():
	}
	s.grpc.Stop()
	<-graceful
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.work.Wait()
		s.activity.Wait()
		s.agents.Wait()
		s.carrier.Wait()
		s.book.Flush(ctx, s.log)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	return context.Cause(ctx)
}
