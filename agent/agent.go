package agent

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/sandgate/sandgate/agent/egress"
	"github.com/sandgate/sandgate/agent/fault"
	"github.com/sandgate/sandgate/agent/files"
	"github.com/sandgate/sandgate/agent/network"
	"github.com/sandgate/sandgate/agent/payload"
	"github.com/sandgate/sandgate/agent/process"
	"github.com/sandgate/sandgate/agent/protocol"
	"github.com/sandgate/sandgate/agent/spawn"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
)

// Config configures an Agent. The zero value is usable.
type Config struct {
	// Version is reported by Hello. Empty: "dev".
	Version string
	// Incarnation is the id of this life of the sandbox. Empty: a random one.
	Incarnation string
	// Workdir is the default working directory of commands. Empty: the agent's.
	Workdir string
	// Cgroup is a delegated cgroup v2 directory. If it is empty or unusable, each
	// command gets a subreaper.
	Cgroup string
	// StateDir is where output is spilled. Empty: the first writable one of /tmp,
	// /var/tmp and /dev/shm; without one, output stays in memory.
	StateDir string
	// Env is the environment of commands. Nil: the agent's own, without variables
	// whose names begin with SANDGATE_AGENT_.
	Env []string
	// Egress opens the proxy and the name server of a sandbox with the network mode
	// PROXY, and points Env to the proxy.
	Egress bool
	// Redirect redirects connects of commands that ignore the proxy, where programs ask
	// another name server or the agent may not listen at ports below 1024.
	Redirect bool
	// Reap makes the agent reap orphans. Then no other code of its process may
	// wait for children.
	Reap bool
	// StallTimeout is how long a reader may take nothing before it is dropped.
	// 0: 60 s.
	StallTimeout time.Duration
	// BrokenGrace is the least time that a command outlives a broken connection.
	// 0: 60 s.
	BrokenGrace time.Duration
	// Log is where the agent logs. Nil: nowhere.
	Log *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Version == "" {
		c.Version = "dev"
	}
	if c.Incarnation == "" {
		var b [8]byte
		_, _ = rand.Read(b[:])
		c.Incarnation = hex.EncodeToString(b[:])
	}
	if c.Workdir == "" {
		dir, err := os.Getwd()
		if err != nil {
			dir = "/"
		}
		c.Workdir = dir
	}
	if c.StateDir == "" {
		for _, dir := range []string{"/tmp", "/var/tmp", "/dev/shm"} {
			if unix.Access(dir, unix.W_OK|unix.X_OK) == nil {
				c.StateDir = dir
				break
			}
		}
	}
	if c.Env == nil {
		c.Env = []string{}
		for _, kv := range os.Environ() {
			if !strings.HasPrefix(kv, "SANDGATE_AGENT_") {
				c.Env = append(c.Env, kv)
			}
		}
	}
	if c.StallTimeout <= 0 {
		c.StallTimeout = time.Minute
	}
	if c.BrokenGrace <= 0 {
		c.BrokenGrace = time.Minute
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Types named Service can't be embedded under their own names.
type (
	fileService    = files.Service
	processService = process.Service
	networkService = network.Service
	egressService  = egress.Service
)

// unimplemented lies one level deeper than the services, whose methods win.
type unimplemented struct {
	agentv1.UnimplementedAgentServiceServer
}

// Agent is a server of AgentService.
type Agent struct {
	*fileService
	*processService
	*networkService
	*egressService
	unimplemented

	cfg      Config
	server   *grpc.Server
	pending  pendingConns
	stopped  chan struct{} // closed by Shutdown
	stopOnce sync.Once
}

var _ agentv1.AgentServiceServer = (*Agent)(nil)

// New returns an agent. Close ends it.
func New(cfg Config) (*Agent, error) {
	cfg = cfg.withDefaults()
	spawn.ResetIgnored()
	fs := files.New(files.Config{})
	outgoing := egress.Config{Enabled: cfg.Egress, Log: cfg.Log}
	if cfg.Redirect {
		outgoing.Redirect = spawn.NotifyConnects
	}
	outbound, err := egress.New(outgoing)
	if err != nil {
		return nil, err
	}
	cfg.Env = withDefault(cfg.Env, outbound.Env())
	a := &Agent{
		fileService:   fs,
		egressService: outbound,
		processService: process.New(process.Config{
			Incarnation: cfg.Incarnation, Workdir: cfg.Workdir, Cgroup: cfg.Cgroup, StateDir: cfg.StateDir, Env: cfg.Env, Trust: (&trust{dir: cfg.StateDir, log: cfg.Log}).environ,
			Reap: cfg.Reap, StallTimeout: cfg.StallTimeout, BrokenGrace: cfg.BrokenGrace, Log: cfg.Log,
			WritePrefixes: fs.WritePrefixes, Refusals: outbound, Disconnected: disconnected,
		}),
		networkService: network.New(network.Config{Incarnation: cfg.Incarnation, Log: cfg.Log}),
		cfg:            cfg,
		stopped:        make(chan struct{}),
	}
	recovery := fault.Recovery{Log: cfg.Log}
	a.server = grpc.NewServer(
		grpc.ForceServerCodecV2(payload.Codec{}),
		grpc.MaxRecvMsgSize(protocol.Received(protocol.MaxMessage)),
		grpc.MaxHeaderListSize(protocol.MaxHeaderList),
		grpc.ConnectionTimeout(connectTimeout),
		// Recovery is inside of replay, which then keeps the error as the call's
		// answer.
		grpc.ChainUnaryInterceptor(newReplay().intercept, recovery.Unary),
		grpc.StreamInterceptor(recovery.Stream),
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

const (
	// ioBuffer is how much a connection reads and writes at once.
	ioBuffer = 64 << 10
	// connectTimeout bounds the HTTP/2 handshake of a new connection.
	connectTimeout = 10 * time.Second
)

// Serve answers calls on l until Close or Shutdown. It may be called for several
// listeners.
func (a *Agent) Serve(l net.Listener) error {
	err := a.server.Serve(&listener{Listener: l, pending: &a.pending})
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

// Stopped is closed after a Shutdown call.
func (a *Agent) Stopped() <-chan struct{} { return a.stopped }

// Close kills all commands, ends all calls and frees everything. It returns in
// bounded time.
func (a *Agent) Close() {
	a.stop()
	a.pending.close()
	a.egressService.Close()
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
	a.processService.Close()
	a.networkService.Close()
	a.fileService.Close()
}

// stop ends all connections, kills all commands and closes stopped.
func (a *Agent) stop() {
	a.StopConnections()
	a.Stop()
	a.stopOnce.Do(func() { close(a.stopped) })
}
