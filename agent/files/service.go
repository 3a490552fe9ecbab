package files

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/sandgate/sandgate/agent/files/paths"
	"github.com/sandgate/sandgate/agent/files/search"
	"github.com/sandgate/sandgate/agent/protocol"
	"github.com/sandgate/sandgate/agent/threads"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Config configures a Service. The zero value is usable.
type Config struct {
	// PartRetention is how long a part is kept after its last byte. 0: 1 h.
	PartRetention time.Duration
	// MaxParts is how many resumable uploads are kept. A new one replaces the one that
	// was idle for longest. 0: 64.
	MaxParts int
	// GlobTime bounds the walk of GlobFiles. 0: 5 s.
	GlobTime time.Duration
	// SearchTime bounds SearchFiles, including the wait for other searches. 0: 15 s.
	SearchTime time.Duration
	// NoOpenat2 resolves paths in user space even if the kernel has openat2.
	NoOpenat2 bool
	// NoTmpfile uses hidden files for drafts even if unnamed ones can be made.
	NoTmpfile bool
}

func (c Config) withDefaults() Config {
	if c.PartRetention <= 0 {
		c.PartRetention = time.Hour
	}
	if c.MaxParts <= 0 {
		c.MaxParts = 64
	}
	if c.GlobTime <= 0 {
		c.GlobTime = 5 * time.Second
	}
	if c.SearchTime <= 0 {
		c.SearchTime = 15 * time.Second
	}
	return c
}

// Service answers the file calls of AgentService. It is safe for concurrent use.
type Service struct {
	cfg     Config
	parts   *parts
	locks   locks
	search  *search.Memory
	work    *threads.Slots // all calls but those that walk trees
	walks   *threads.Slots
	running atomic.Int64
	started time.Time
	last    atomic.Int64 // last activity: nanoseconds after started, monotonic
}

// New returns a service. Close must be called.
func New(cfg Config) *Service {
	cfg = cfg.withDefaults()
	return &Service{cfg: cfg, started: time.Now(), parts: newParts(cfg.MaxParts, cfg.PartRetention), search: search.NewMemory(), work: threads.NewSlots(maxWork, lentWork), walks: threads.NewSlots(maxWalks, lentWalks)}
}

// Close removes the parts of unfinished uploads. Running calls end by their own contexts;
// an upload that fails afterwards leaves no part.
func (s *Service) Close() { s.parts.close() }

// Active returns how many calls run and the time since one last began or ended.
func (s *Service) Active() (running int, idle time.Duration) {
	return int(s.running.Load()), time.Since(s.started) - time.Duration(s.last.Load())
}

func (s *Service) touch() { s.last.Store(int64(time.Since(s.started))) }

// Each of these may hold a thread of the agent in a system call, of which
// threads.Reserve starts enough.
const (
	maxWork, lentWork   = 6, 4
	maxWalks, lentWalks = 3, 1
)

// enter begins a call that works in one of the slots, which the context carries then.
// Without an error, the caller must call leave.
func (s *Service) enter(ctx context.Context, slots *threads.Slots) (_ context.Context, leave func(), err error) {
	end := s.begin(ctx)
	slot, err := slots.Take(ctx)
	if err != nil {
		end()
		return ctx, nil, asFault("", err)
	}
	return threads.With(ctx, slot), func() {
		slot.Release()
		end()
	}, nil
}

// call is a call with what it may access, and its limits.
type call struct {
	view   *paths.View
	limits *agentv1.Limits
	leave  func()
}

// open is enter for a call that accesses files. leave closes the view, too.
func (s *Service) open(ctx context.Context, slots *threads.Slots) (context.Context, call, error) {
	ctx, leave, err := s.enter(ctx, slots)
	if err != nil {
		return ctx, call{}, err
	}
	view, limits, err := s.view(ctx)
	if err != nil {
		leave()
		return ctx, call{}, err
	}
	return ctx, call{view: view, limits: limits, leave: func() {
		_ = view.Close()
		leave()
	}}, nil
}

// begin counts a call until end, unless it is an inspection.
func (s *Service) begin(ctx context.Context) (end func()) {
	if protocol.Inspects(ctx) {
		return func() {}
	}
	s.running.Add(1)
	s.touch()
	return func() {
		s.touch()
		s.running.Add(-1)
	}
}

// view returns what a call may access, which the caller must close, and the call's
// limits.
func (s *Service) view(ctx context.Context) (*paths.View, *agentv1.Limits, error) {
	c, err := protocol.CallContext(ctx)
	if err != nil {
		return nil, nil, requestFault(protocol.CallContextKey, err.Error())
	}
	view, err := s.newView(c.GetConfinement().GetPolicies())
	return view, c.GetLimits(), err
}

func (s *Service) newView(access []*sandboxv1.AccessPolicy) (*paths.View, error) {
	policies := make([]paths.Policy, 0, len(access))
	for _, p := range access {
		policies = append(policies, paths.Policy{
			Root: p.GetRootDir(), Virtual: p.GetVirtual(),
			WriteAllow: p.GetWriteAllowPrefixes(), WriteDeny: p.GetWriteDenyPrefixes(),
			ReadDeny: p.GetReadDenyPrefixes(),
		})
	}
	v, err := paths.New(policies, paths.Options{NoKernel: s.cfg.NoOpenat2})
	if err != nil {
		return nil, policyFault(err)
	}
	return v, nil
}

// WritePrefixes returns the paths beneath which policies allow writes, and those
// beneath them where they forbid writes.
func (s *Service) WritePrefixes(policies []*sandboxv1.AccessPolicy) (allow, deny []string, err error) {
	view, err := s.newView(policies)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = view.Close() }()
	allow, deny = view.WritePrefixes()
	return allow, deny, nil
}
