package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/docker/daemon"
	"github.com/sandgate/sandgate/providers/internal/atomicfile"
	"github.com/sandgate/sandgate/providers/internal/directory"
	"github.com/sandgate/sandgate/providers/internal/ledger"
	"github.com/sandgate/sandgate/providers/internal/lock"
	"github.com/sandgate/sandgate/providers/internal/pool"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// Provider runs sandboxes as Docker containers.
type Provider struct {
	config  Config
	log     *slog.Logger
	layout  layout
	locks   *lock.Table
	ledgers *ledger.Directory
	store   *directory.Store[*record]
	docker  *client.Client
	id      string // of the state directory, in labels

	info system.Info // as of the start

	prepared  prepared
	transport atomic.Pointer[Transport] // nil until it is known

	background sync.WaitGroup
	stop       context.CancelCauseFunc
}

var (
	_ providers.Provider  = (*Provider)(nil)
	_ providers.Pooler    = (*Provider)(nil)
	_ providers.Suspender = (*Provider)(nil)
	_ providers.Prober    = (*Provider)(nil)

	_ providers.Coordinator = (*Provider)(nil)
	_ providers.Ledger      = (*Provider)(nil)
)

// The labels of containers, volumes and images that the provider made.
const (
	serverLabel  = "sandgate.dev/server"  // the state directory's id
	sandboxLabel = "sandgate.dev/sandbox" // the sandbox's name, or the pool member's
	agentLabel   = "sandgate.dev/agent"   // of a prepared image: the digest of its agent
)

// New opens a state directory and finishes creations and deletions that a previous
// server left half done. The daemon must answer.
func New(ctx context.Context, config Config) (*Provider, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	if config.Transport == TransportSocket && !canDialSockets() {
		return nil, fmt.Errorf("transport %q needs Linux and root: use %q: %w", config.Transport, TransportAuto, providers.ErrInvalid)
	}
	p := &Provider{config: config, log: config.Logger, layout: layout{directory.Layout(config.StateDir)}}
	if err := p.layout.Make(p.layout.probe()); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	p.locks = lock.NewTable(p.layout.Locks())
	if p.ledgers, err = ledger.Open(p.layout.ledgers()); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if p.id, err = p.stateID(ctx); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if p.docker, err = daemon.NewClient(config.Host); err != nil {
		return nil, err
	}
	if err := p.connect(ctx); err != nil {
		return nil, errors.Join(err, p.docker.Close())
	}
	agent, _ := p.agentDigest("amd64") // any: it tells versions apart
	p.store = directory.NewStore(driver{p}, directory.Config[*record]{
		Layout: p.layout.Layout, Locks: p.locks, Log: p.log, Read: readRecord,
		Pool:   pool.Config{Log: p.log, Check: checkPool, Parallel: 2, RefillDelay: refillDelay},
		Prefix: "sandgate-pool.", Fixed: []any{config.Image, config.Transport, agent},
	})
	p.sweep(ctx)
	ctx, p.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	p.background.Go(func() { p.keepSweeping(ctx) })
	return p, nil
}

// stateID returns the random name of the state directory, which the first server
// gives it.
func (p *Provider) stateID(ctx context.Context) (string, error) {
	held, err := p.locks.Acquire(ctx, "_id")
	if err != nil {
		return "", err
	}
	defer held.Release(true)
	data, err := os.ReadFile(p.layout.id())
	if !errors.Is(err, fs.ErrNotExist) {
		return strings.TrimSpace(string(data)), err
	}
	id := shared.Random()
	return id, atomicfile.WriteDurable(p.layout.id(), []byte(id+"\n"), 0o600)
}

// Close leaves all sandboxes running, unclaimed ones included.
func (p *Provider) Close() error {
	p.store.Close()
	p.stop(errClosed)
	p.background.Wait()
	return p.docker.Close()
}

var errClosed = errors.New("the provider is closed")

// Probe asks the daemon for a sign of life.
func (p *Provider) Probe(ctx context.Context) (providers.Probe, error) {
	if _, err := p.docker.Ping(ctx, client.PingOptions{}); err != nil {
		return providers.Probe{}, p.daemonError(ctx, "probe", err)
	}
	return providers.Probe{FreeBytes: -1}, nil
}

// sweepInterval is how often half-done work of crashed servers is looked for.
const sweepInterval = 30 * time.Second

func (p *Provider) keepSweeping(ctx context.Context) {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	p.removeOldHelpers(ctx)
	p.removeOldImages(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			p.sweep(ctx)
		}
	}
}
