package files

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/files/paths"
	"github.com/sandgate/sandgate/agent/files/search"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
)

// Config says how a Service works. The zero value is usable.
type Config struct {
	// PartDir is where the parts of resumable uploads are kept. It is made when
	// missing. A part on another file system than its target is copied when it
	// is complete. Empty: beside the target.
	PartDir string
	// PartRetention is how long a part is kept after its last byte. 0: 1 h.
	PartRetention time.Duration
	// MaxParts is how many resumable uploads are kept; the part that was idle
	// for longest makes room for a new one. 0: 64.
	MaxParts int
	// GlobTime bounds the walk of GlobFiles. 0: 5 s.
	GlobTime time.Duration
	// SearchTime bounds SearchFiles, with the wait for a place among the searches
	// that run. 0: 15 s.
	SearchTime time.Duration
	// NoOpenat2 resolves paths in user space even where the kernel could.
	NoOpenat2 bool
	// NoTmpfile gives files that are not in their places yet hidden names even
	// where nameless ones can be made.
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

// Service answers the file calls of AgentService. It is safe for concurrent
// use.
type Service struct {
	cfg     Config
	parts   *parts
	locks   locks
	search  *search.Memory
	running atomic.Int64
	started time.Time
	last    atomic.Int64 // last activity: nanoseconds after started, monotonic
}

// New returns a service. Close ends it.
func New(cfg Config) (*Service, error) {
	cfg = cfg.withDefaults()
	s := &Service{cfg: cfg, started: time.Now(), parts: newParts(cfg.MaxParts, cfg.PartRetention), search: search.NewMemory()}
	if cfg.PartDir != "" {
		if err := os.MkdirAll(cfg.PartDir, 0o700); err != nil {
			return nil, fmt.Errorf("directory for parts of uploads: %w", err)
		}
		dir, err := os.OpenFile(cfg.PartDir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("directory for parts of uploads: %w", err)
		}
		s.parts.dir = dir
	}
	return s, nil
}

// Close removes the parts of unfinished uploads. Calls that still run end by
// their own contexts; an upload that is cut off afterwards leaves no part.
func (s *Service) Close() error { return s.parts.close() }

// Active returns how many calls run and the time since one last began or ended.
func (s *Service) Active() (running int, idle time.Duration) {
	return int(s.running.Load()), time.Since(s.started) - time.Duration(s.last.Load())
}

func (s *Service) touch() { s.last.Store(int64(time.Since(s.started))) }

// Openat2 reports whether the kernel resolves paths beneath a root directory.
func (s *Service) Openat2() bool { return !s.cfg.NoOpenat2 && paths.Kernel() }

func (s *Service) begin() (end func()) {
	s.running.Add(1)
	s.touch()
	return func() {
		s.touch()
		s.running.Add(-1)
	}
}

// view returns what the confinement lets a call see. The caller closes it.
func (s *Service) view(c *agentv1.Confinement) (*paths.View, error) {
	policies := make([]paths.Policy, 0, len(c.GetPolicies()))
	for _, p := range c.GetPolicies() {
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

// WritePrefixes returns beneath which paths a confinement allows writes, and
// where beneath them it forbids them.
func (s *Service) WritePrefixes(c *agentv1.Confinement) (allow, deny []string, err error) {
	view, err := s.view(c)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = view.Close() }()
	allow, deny = view.WritePrefixes()
	return allow, deny, nil
}
