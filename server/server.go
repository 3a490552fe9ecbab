package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/admission"
	"github.com/sandgate/sandgate/server/agentcall"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/audit"
	"github.com/sandgate/sandgate/server/carrier"
	"github.com/sandgate/sandgate/server/egress"
	"github.com/sandgate/sandgate/server/events"
	"github.com/sandgate/sandgate/server/exec"
	"github.com/sandgate/sandgate/server/forward"
	"github.com/sandgate/sandgate/server/inprocess"
	"github.com/sandgate/sandgate/server/lifetime"
	"github.com/sandgate/sandgate/server/limit"
	"github.com/sandgate/sandgate/server/listen"
	"github.com/sandgate/sandgate/server/metrics"
	"github.com/sandgate/sandgate/server/quota"
	"github.com/sandgate/sandgate/server/tracing"
	"github.com/sandgate/sandgate/server/transfer"
	"github.com/sandgate/sandgate/server/webhook"
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
	gate        *admission.Gate
	router      *agentcall.Router
	exec        *exec.Service
	transfer    *transfer.Service
	forward     *forward.Service
	uploads     *limit.Shared
	inProcess   *inprocess.Server // what requests to the preview listener call
	preview     *previewServer    // nil: none
	clock       *lifetime.Clock
	pools       *[]providers.Pool // that the provider keeps; nil: unknown. Of New and Reload
	book        *quota.Book
	documents   events.Change
	journal     *events.Journal
	webhooks    *webhook.Sender
	streams     *quota.Streams
	pace        *quota.Pace
	creations   *creations // nil: no bound
	egress      *limit.Shared
	metrics     *metrics.Metrics
	tracing     tracing.Tracing
	audit       *audit.Recorder

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
	if cfg.Provider == nil {
		return nil, errors.New("server: Config.Provider is not set")
	}
	cfg, err := cfg.withDefaults()
	if err == nil {
		err = cfg.checkSecrets()
	}
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, log: cfg.Logger, provider: cfg.Provider, codec: agentconn.NewCodec(),
		health: health.NewServer(), halt: make(chan struct{}), expired: lifetime.NewTombstones(),
		tracing: tracing.New(cfg.Tracer), clock: lifetime.NewClock(cfg.readClock),
		book: quota.NewBook(cfg.Provider, cfg.Quotas, cfg.Limits.CreateTimeout), streams: quota.NewStreams(cfg.Quotas), pace: quota.NewPace(),
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
		s.creations = &creations{all: limit.NewShared(n, cfg.Authenticator != nil), others: func(tenant string) bool { return s.gate.Others(tenant) }}
		if cfg.Authenticator != nil && s.described.Creations > 0 {
			s.creations.beside = limit.NewDivided(n, besideParts)
		}
	}
	s.egress = limit.NewShared(cfg.Limits.MaxEgressConnections, cfg.Authenticator != nil)
	rules, err := newSettings(cfg, allowed, s.described.DefaultResources)
	if err != nil {
		return nil, err
	}
	s.current.Store(rules)
	// Pools fill in the background. A start that deletes much first may take
	// longer than Describe.
	if err := s.keepPools(context.WithoutCancel(ctx), rules.policy); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	s.assemble()
	s.register()
	s.start()
	return s, nil
}

// Serve accepts calls until Shutdown and then returns nil. It may be called for
// several listeners. It rejects a listener that other machines could reach with
// ErrExposed, unless TLS and authentication are configured.
func (s *Server) Serve(l net.Listener) error {
	if !s.cfg.Insecure && listen.Reachable(l.Addr()) && (s.cfg.TLS == nil || s.cfg.Authenticator == nil) {
		return fmt.Errorf("%s: %w", l.Addr(), ErrExposed)
	}
	if s.cfg.Announce != nil {
		s.cfg.Announce(l.Addr())
	}
	if err := s.grpc.Serve(s.gate.Listener(l)); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
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
	requests := s.preview.idle()
	go func() {
		defer close(graceful)
		s.grpc.GracefulStop()
		select {
		case <-requests:
		case <-ctx.Done():
		}
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
	s.preview.close()
	<-graceful
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.work.Wait()
		s.inProcess.Wait()
		s.activity.Wait()
		s.agents.Wait()
		s.carrier.Wait()
		s.book.Flush(ctx, s.log)
		if err := s.journal.Flush(ctx); err != nil {
			s.log.WarnContext(ctx, "the last events could not be written", "error", err)
		}
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	return context.Cause(ctx)
}
