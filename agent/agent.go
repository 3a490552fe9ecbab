package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/sandgate/sandgate/agent/files"
	"github.com/sandgate/sandgate/agent/spawn"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	"github.com/sandgate/sandgate/streaming"
)

// ProtocolMinor is the minor of sandbox.agent.v1 that this agent speaks.
const ProtocolMinor = 1

// Config says how an agent works. The zero value is usable.
type Config struct {
	// Version is reported by Hello. Empty: "dev".
	Version string
	// Incarnation names this life of the sandbox. Empty: a random one.
	Incarnation string
	// Workdir is where commands start by default. Empty: the agent's own.
	Workdir string
	// Cgroup is a delegated cgroup v2 directory. Empty, or not usable: every
	// command gets a sub-reaper.
	Cgroup string
	// StateDir is where output is spilled. Empty: the first of /tmp, /var/tmp
	// and /dev/shm that can be written; none of them: output stays in memory.
	StateDir string
	// Env is the environment of commands. Nil: the agent's own, without what
	// begins with SANDGATE_AGENT_.
	Env []string
	// Reap makes the agent collect orphans: it must be the only one in its
	// process that waits for children.
	Reap bool
	// StallTimeout is how long a reader may take nothing before it is dropped.
	// 0: 60 s.
	StallTimeout time.Duration
	// BrokenGrace is the least time that a command outlives a broken
	// connection. 0: 60 s.
	BrokenGrace time.Duration
	// Log takes what the agent has to say. Nil: nothing is said.
	Log *slog.Logger
}

// unimplemented lies one level deeper than files.Service, whose methods win.
type unimplemented struct {
	agentv1.UnimplementedAgentServiceServer
}

// Agent is a server of AgentService.
type Agent struct {
	*files.Service
	unimplemented

	cfg     Config
	server  *grpc.Server
	reaper  *reaper
	cgroups *cgroups
	budget  *streaming.Budget
	oom     *oomCounter
	crowd   *crowd
	started time.Time
	last    atomic.Int64 // last activity: nanoseconds after started, monotonic
	running atomic.Int64
	idle    *time.Timer // gives memory back when nothing runs
	cancel  context.CancelCauseFunc
	wg      sync.WaitGroup

	strangers strangers
	recovery  recovery

	mu       sync.Mutex
	commands map[string]*command // until their pumps end
	ended    *history
	stopping bool
	stopped  chan struct{} // closed by Shutdown
	stopOnce sync.Once
}

var _ agentv1.AgentServiceServer = (*Agent)(nil)

// idleTime is how long nothing must run before memory is given back.
const idleTime = 2 * time.Second

// slim gives memory that a load needed back to the sandbox.
func (a *Agent) slim() {
	if a.running.Load() == 0 {
		debug.FreeOSMemory()
	}
}

// What the agent may take for output that it keeps in memory, of all commands
// together.
const memoryBudget = 4 << 20

// New returns an agent. Close must be called in the end.
func New(cfg Config) (*Agent, error) {
	if cfg.Version == "" {
		cfg.Version = "dev"
	}
	if cfg.Incarnation == "" {
		var b [8]byte
		_, _ = rand.Read(b[:])
		cfg.Incarnation = hex.EncodeToString(b[:])
	}
	if cfg.Workdir == "" {
		dir, err := os.Getwd()
		if err != nil {
			dir = "/"
		}
		cfg.Workdir = dir
	}
	if cfg.Env == nil {
		cfg.Env = ownEnv()
	}
	if cfg.StallTimeout <= 0 {
		cfg.StallTimeout = time.Minute
	}
	if cfg.BrokenGrace <= 0 {
		cfg.BrokenGrace = time.Minute
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.StateDir == "" {
		for _, dir := range []string{"/tmp", "/var/tmp", "/dev/shm"} {
			if unix.Access(dir, unix.W_OK|unix.X_OK) == nil {
				cfg.StateDir = dir
				break
			}
		}
	}
	spawn.ResetIgnored()
	fs, err := files.New(files.Config{})
	if err != nil {
		return nil, fmt.Errorf("start file service: %w", err)
	}
	a := &Agent{
		Service:  fs,
		cfg:      cfg,
		reaper:   newReaper(cfg.Reap),
		budget:   streaming.NewBudget(memoryBudget),
		oom:      openOOMCounter(),
		crowd:    openCrowd(crowdDirs),
		commands: map[string]*command{},
		ended:    newHistory(cfg.StateDir),
		recovery: recovery{cfg.Log},
		started:  time.Now(),
		stopped:  make(chan struct{}),
	}
	a.idle = time.AfterFunc(idleTime, a.slim)
	if cfg.Cgroup != "" {
		a.cgroups, err = newCgroups(cfg.Cgroup, a.recovery)
		if err != nil {
			cfg.Log.Warn("no cgroup per command; each gets a sub-reaper", "error", err)
		}
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	a.cancel = cancel
	if cfg.Reap {
		_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
		a.wg.Add(1)
		go func() {
			defer a.wg.Done()
			for ctx.Err() == nil {
				a.recovery.guard("the reaper of orphans", func() { a.reaper.run(ctx) })
			}
		}()
	}
	a.server = grpc.NewServer(
		grpc.ForceServerCodecV2(codec{}),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.ConnectionTimeout(connectTime),
		// Panics are caught inside of replay, which then keeps the error as the
		// call's answer.
		grpc.ChainUnaryInterceptor(newReplay().intercept, a.recovery.unary),
		grpc.StreamInterceptor(a.recovery.stream),
		grpc.ReadBufferSize(ioBuffer),
		grpc.WriteBufferSize(ioBuffer),
		grpc.InitialWindowSize(1<<20),
		grpc.InitialConnWindowSize(2<<20),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	)
	agentv1.RegisterAgentServiceServer(a.server, a)
	return a, nil
}

// ioBuffer is how much a connection reads and writes at once.
const ioBuffer = 64 << 10

// connectTime is how long a new connection may take to say what it wants.
const connectTime = 10 * time.Second

// maxMessage is the largest request that the agent takes: the largest of a
// caller and the envelope that the server puts around it.
const maxMessage = 17 << 20

func ownEnv() []string {
	env := []string{}
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "SANDGATE_AGENT_") {
			env = append(env, kv)
		}
	}
	return env
}

// Serve answers calls from l until Close or Shutdown. It may be called for
// several listeners.
func (a *Agent) Serve(l net.Listener) error {
	err := a.server.Serve(&listener{Listener: l, strangers: &a.strangers})
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

// Stopped is closed once a caller has shut the agent down.
func (a *Agent) Stopped() <-chan struct{} { return a.stopped }

// Close kills every command, ends all calls and frees everything. It returns
// in bounded time.
func (a *Agent) Close() {
	a.stopCommands()
	a.signalStopped()
	a.strangers.hangUp()
	done := make(chan struct{})
	go func() {
		a.server.GracefulStop()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(500 * time.Millisecond):
		a.server.Stop()
		<-done
	}
	a.cancel(errStopped)
	a.wg.Wait()
	a.mu.Lock()
	a.ended.close()
	a.mu.Unlock()
	if a.cgroups != nil {
		a.cgroups.close()
	}
	a.idle.Stop()
	a.oom.close()
	a.crowd.close()
	_ = a.Service.Close()
}

var errStopped = errors.New("the sandbox is being stopped")

func (a *Agent) signalStopped() { a.stopOnce.Do(func() { close(a.stopped) }) }

// stopCommands kills everything and waits, for a bounded time, for the ends.
func (a *Agent) stopCommands() {
	a.mu.Lock()
	a.stopping = true
	var all []*command
	for _, c := range a.commands {
		all = append(all, c)
	}
	for _, p := range a.ended.alive() {
		all = append(all, p.revive(a))
	}
	a.mu.Unlock()
	var wg sync.WaitGroup
	for _, c := range all {
		wg.Add(1)
		go func() {
			defer wg.Done()
			a.recovery.guard("the stop of a command", c.stop)
		}()
	}
	wg.Wait()
}

func (a *Agent) touch() { a.last.Store(int64(time.Since(a.started))) }
