// Package network is the network half of the agent: TCP connections that cross the
// boundary of the sandbox, each on a stream of its own. A stream's flow control is
// that of its connection, so one that stalls delays no other.
package network

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandgate/sandgate/agent/fault"
)

// Config configures a Service. All fields are required.
type Config struct {
	// Incarnation is the id of this life of the sandbox.
	Incarnation string
	// Log is where the service logs.
	Log *slog.Logger
}

// Service answers the network calls of AgentService.
type Service struct {
	cfg      Config
	recovery fault.Recovery
	open     atomic.Int64 // connections
	started  time.Time
	last     atomic.Int64 // last activity: nanoseconds after started, monotonic

	stopOnce sync.Once
	stopped  chan struct{} // closed by Stop
	wg       sync.WaitGroup
}

// New returns a service. Stop ends it.
func New(cfg Config) *Service {
	return &Service{
		cfg: cfg, recovery: fault.Recovery{Log: cfg.Log},
		started: time.Now(), stopped: make(chan struct{}),
	}
}

// StopConnections ends all connections and rejects new ones.
func (s *Service) StopConnections() { s.stopOnce.Do(func() { close(s.stopped) }) }

// Close waits for the goroutines of ended calls. No calls may be in progress.
func (s *Service) Close() { s.wg.Wait() }

// Idle returns the time since a connection was opened or last carried data.
func (s *Service) Idle() time.Duration {
	return time.Since(s.started) - time.Duration(s.last.Load())
}

func (s *Service) touch() { s.last.Store(int64(time.Since(s.started))) }
