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
	"time"

	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/docker/daemon"
	"github.com/sandgate/sandgate/providers/docker/image"
	"github.com/sandgate/sandgate/providers/internal/atomicfile"
	"github.com/sandgate/sandgate/providers/internal/directory"
	"github.com/sandgate/sandgate/providers/internal/ledger"
	"github.com/sandgate/sandgate/providers/internal/lock"
	"github.com/sandgate/sandgate/providers/internal/pool"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// Provider runs sandboxes as Docker containers.
type Provider struct {
	*sandboxes
	*ledgers

	config Config
	log    *slog.Logger
	docker *client.Client
	info   system.Info // as of the start
	id     string      // of the state directory, in labels
	images *image.Store

	background sync.WaitGroup
	stop       context.CancelCauseFunc
}

type (
	sandboxes = directory.Store[*record]
	ledgers   = ledger.Directory
)

var (
	_ providers.Provider  = (*Provider)(nil)
	_ providers.Pooler    = (*Provider)(nil)
	_ providers.Suspender = (*Provider)(nil)
	_ providers.Prober    = (*Provider)(nil)

	_ providers.Coordinator = (*Provider)(nil)
	_ providers.Ledger      = (*Provider)(nil)
)

// The labels of containers and volumes that the provider made.
const (
	serverLabel  = "sandgate.dev/server"  // the state directory's id
	sandboxLabel = "sandgate.dev/sandbox" // the sandbox's name, or the pool member's
)

// New opens a state directory and finishes creations and deletions that a previous
// server left half done. The daemon must answer.
func New(ctx context.Context, config Config) (*Provider, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	if config.Transport == TransportSocket && !canDialSockets {
		return nil, fmt.Errorf("transport %q needs Linux and root: use %q: %w", config.Transport, TransportAuto, providers.ErrInvalid)
	}
	p := &Provider{config: config, log: config.Logger}
	layout := directory.Layout(config.StateDir)
	if err := layout.Make(); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if p.ledgers, err = ledger.Open(layout.Path("ledgers")); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	locks := lock.NewTable(layout.Locks())
	if p.id, err = stateID(ctx, layout.Path("id"), locks); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if p.docker, err = daemon.NewClient(config.Host); err != nil {
		return nil, err
	}
	if err := p.connect(ctx); err != nil {
		return nil, errors.Join(err, p.docker.Close())
	}
	p.images = image.NewStore(p.docker, locks, p.log, config.Agent)
	agent, _ := p.images.AgentDigest("amd64") // any: it tells versions apart
	p.sandboxes = directory.NewStore(driver{p}, directory.Config[*record]{
		Layout: layout, Locks: locks, Log: p.log, Read: readRecord, Tokens: "docker1",
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
func stateID(ctx context.Context, file string, locks *lock.Table) (string, error) {
	held, err := locks.Acquire(ctx, "_id")
	if err != nil {
		return "", err
	}
	defer held.Release(true)
	data, err := os.ReadFile(file)
	if !errors.Is(err, fs.ErrNotExist) {
		return strings.TrimSpace(string(data)), err
	}
	id := shared.Random()
	return id, atomicfile.WriteDurable(file, []byte(id+"\n"), 0o600)
}

// Close leaves all sandboxes running, unclaimed ones included.
func (p *Provider) Close() error {
	p.sandboxes.Close()
	p.stop(errClosed)
	p.background.Wait()
	return p.docker.Close()
}

var errClosed = errors.New("the provider is closed")

// Probe asks the daemon for a sign of life.
func (p *Provider) Probe(ctx context.Context) (providers.Probe, error) {
	result := providers.Probe{FreeBytes: -1}
	if _, err := p.docker.Ping(ctx, client.PingOptions{}); err != nil {
		return result, p.daemonError(ctx, "probe", err)
	}
	return result, nil
}

// sweep finishes what crashed servers, or a daemon that did not answer, left half done.
func (p *Provider) sweep(ctx context.Context) {
	if err := errors.Join(p.Sweep(ctx), p.settleSuspended(ctx)); err != nil && ctx.Err() == nil {
		p.log.LogAttrs(ctx, slog.LevelWarn, "what is half made, half deleted, half suspended or half resumed is finished later", slog.Any("error", err))
	}
	if err := daemon.RemoveOldHelpers(ctx, p.docker); err != nil {
		p.log.LogAttrs(ctx, slog.LevelDebug, "helper containers cannot be removed", slog.Any("error", err))
	}
}

// sweepInterval is how often half-done work of crashed servers is looked for.
const sweepInterval = 30 * time.Second

func (p *Provider) keepSweeping(ctx context.Context) {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	p.images.RemoveOld(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			p.sweep(ctx)
		}
	}
}
