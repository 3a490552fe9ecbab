// Package process is the command half of the agent: the calls of AgentService
// that start, follow, feed, signal and list commands.
//
// Each command has one goroutine, the pump, which owns its pipes. The pump reads
// them into the command's log and notices that the leader exits. Callers follow
// the log, each from its own position. Package tree kills what a command leaves
// behind; package history keeps ended commands.
package process

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/fault"
	"github.com/sandgate/sandgate/agent/history"
	"github.com/sandgate/sandgate/agent/tree"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

// Config configures a Service. All fields are required unless stated.
type Config struct {
	// Incarnation is the id of this life of the sandbox.
	Incarnation string
	// Workdir is the default working directory of commands.
	Workdir string
	// Cgroup is a delegated cgroup v2 directory. If it is empty or unusable,
	// each command gets a supervisor that is a subreaper.
	Cgroup string
	// StateDir is where output is spilled. If empty, output stays in memory.
	StateDir string
	// Env is the environment of commands.
	Env []string
	// Trust returns the environment with variables that make a command trust an
	// authority, whose certificate is PEM. Nil: the authority is ignored.
	Trust func(certificate []byte, env []string) []string
	// Reap makes the service reap orphans. Then no other code of the process may
	// wait for children.
	Reap bool
	// StallTimeout is how long a reader may take nothing before it is dropped.
	StallTimeout time.Duration
	// BrokenGrace is the least time that a command outlives a broken connection.
	BrokenGrace time.Duration
	// Log is where the service logs.
	Log *slog.Logger
	// WritePrefixes resolves the write prefixes of policies.
	WritePrefixes func([]*sandboxv1.AccessPolicy) (allow, deny []string, err error)
	// Refusals counts what the sandbox's network refused. Nil: nothing.
	Refusals Refusals
	// Disconnected reports whether the connection of a call is broken, rather
	// than only the call cancelled.
	Disconnected func(context.Context) bool
}

// Refusals counts what the sandbox's network refused its programs.
type Refusals interface {
	// Refused returns the count so far.
	Refused() int64
	// RefusedMessage returns one line for people about what was refused since the
	// count was before, "" if that is nothing.
	RefusedMessage(before int64) string
}

// Service answers the command calls of AgentService.
type Service struct {
	cfg      Config
	recovery fault.Recovery
	reaper   *tree.Reaper
	cgroups  *tree.Cgroups // nil without a usable cgroup
	budget   *streaming.Budget
	oom      *tree.OOMCounter
	pids     *tree.PidsEvents
	started  time.Time
	last     atomic.Int64 // last activity: nanoseconds after started, monotonic
	running  atomic.Int64
	idle     *time.Timer // calls compact
	cancel   context.CancelCauseFunc
	wg       sync.WaitGroup

	mu       sync.Mutex
	commands map[string]*command // until their pumps end
	ended    *history.History
	stopping bool
}

const (
	// idleTime is how long no command must run before compact is called.
	idleTime = 2 * time.Second
	// memoryBudget bounds the output in memory of all commands together.
	memoryBudget = 4 << 20
	// stopTime is how long Stop waits for one command.
	stopTime = 5 * time.Second
)

var errClosed = errors.New("the service is closed")

// New returns a service. Stop and then Close end it.
func New(cfg Config) *Service {
	s := &Service{
		cfg:      cfg,
		recovery: fault.Recovery{Log: cfg.Log},
		reaper:   tree.NewReaper(cfg.Reap),
		budget:   streaming.NewBudget(memoryBudget),
		oom:      tree.OpenOOMCounter(),
		pids:     tree.OpenPidsEvents(),
		commands: map[string]*command{},
		ended:    history.New(cfg.StateDir),
		started:  time.Now(),
	}
	s.idle = time.AfterFunc(idleTime, s.compact)
	if cfg.Cgroup != "" {
		var err error
		s.cgroups, err = tree.NewCgroups(cfg.Cgroup, s.recovery)
		if err != nil {
			cfg.Log.Warn("no cgroup per command; each gets a subreaper", "error", err)
		}
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	s.cancel = cancel
	if cfg.Reap {
		_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
		s.wg.Go(func() {
			for ctx.Err() == nil {
				s.recovery.Guard("the reaper of orphans", func() { s.reaper.Run(ctx) })
			}
		})
	}
	return s
}

// Stop kills all commands and waits, for a bounded time, until they have ended.
// No command starts afterwards.
func (s *Service) Stop() {
	s.mu.Lock()
	s.stopping = true
	var all []*command
	for _, c := range s.commands {
		all = append(all, c)
	}
	for _, c := range s.ended.Live() {
		all = append(all, s.load(c))
	}
	s.mu.Unlock()
	var wg sync.WaitGroup
	for _, c := range all {
		wg.Go(func() { s.recovery.Guard("the stop of a command", c.stop) })
	}
	wg.Wait()
}

// Close frees everything. No calls may be in progress.
func (s *Service) Close() {
	s.cancel(errClosed)
	s.wg.Wait()
	s.mu.Lock()
	s.ended.Close()
	s.mu.Unlock()
	if s.cgroups != nil {
		s.cgroups.Close()
	}
	s.idle.Stop()
	s.oom.Close()
	s.pids.Close()
}

// Active returns how many commands run and the time since a call or a command
// last did something.
func (s *Service) Active() (running int, idle time.Duration) {
	return int(s.running.Load()), time.Since(s.started) - time.Duration(s.last.Load())
}

// KillMode returns how the service finds the descendants of a command.
func (s *Service) KillMode() agentv1.KillMode {
	if s.cgroups != nil {
		return agentv1.KillMode_KILL_MODE_CGROUP
	}
	return agentv1.KillMode_KILL_MODE_SUBREAPER
}

func (s *Service) touch() { s.last.Store(int64(time.Since(s.started))) }

// compact returns free memory to the sandbox.
func (s *Service) compact() {
	if s.running.Load() == 0 {
		debug.FreeOSMemory()
	}
}
