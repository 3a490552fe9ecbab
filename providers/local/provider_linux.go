package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/directory"
	"github.com/sandgate/sandgate/providers/internal/ledger"
	"github.com/sandgate/sandgate/providers/internal/lock"
	"github.com/sandgate/sandgate/providers/internal/pool"
	"github.com/sandgate/sandgate/providers/local/cgroup"
	"github.com/sandgate/sandgate/providers/local/disk"
	"github.com/sandgate/sandgate/providers/local/image"
	"github.com/sandgate/sandgate/providers/local/oci"
	"github.com/sandgate/sandgate/providers/local/removal"
	"github.com/sandgate/sandgate/providers/local/userid"
	"github.com/sandgate/sandgate/providers/local/userland"
)

// Provider runs sandboxes on this machine.
type Provider struct {
	*sandboxes
	*ledgers

	config      Config
	log         *slog.Logger
	layout      layout
	locks       *lock.Table
	runtime     *oci.Runtime
	cgroups     cgroup.Groups
	totalLimits cgroup.Limits
	disks       *disk.Maker
	space       *disk.Space
	images      *image.Store
	userIDs     *userid.Allocator
	host        *userland.Userland
	agent       string // the agent's file
	held        held   // what sandboxes are made from
	adopted     int    // sandboxes that ran when New was called
	shortfalls  atomic.Pointer[shortfalls]
	noNamespace atomic.Value // string: why sandboxes without root get no user namespace; empty: they get one

	removals   *removal.Remover
	background sync.WaitGroup // ends soon after stop
	stop       context.CancelCauseFunc

	foreground foreground // creations that somebody waits for
}

type (
	sandboxes = directory.Store[*record]
	ledgers   = ledger.Directory
)

var (
	_ providers.Provider = (*Provider)(nil)
	_ providers.Pooler   = (*Provider)(nil)
	_ providers.Ledger   = (*Provider)(nil)

	_ providers.Coordinator = (*Provider)(nil)
)

// New opens a state directory, finishes creations and deletions that a previous
// server left half done, and adopts running sandboxes. It makes the process a
// child subreaper.
func New(ctx context.Context, config Config) (*Provider, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("the local provider must run as root: %w", providers.ErrUnsupported)
	}
	p := &Provider{
		config: config,
		log:    config.Logger,
		layout: layout{directory.Layout(config.StateDir)},
	}
	p.removals = removal.New(removal.Config{Log: p.log, Settle: p.settle, Fault: p.fault, Go: p.background.Go})
	if err := p.layout.make(); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if err := oci.AdoptOrphans(); err != nil {
		return nil, err
	}
	if p.runtime, err = oci.New(config.Runtime, p.layout.runtime()); err != nil {
		return nil, err
	}
	p.findNamespaces(ctx)
	p.locks = lock.NewTable(p.layout.Locks())
	if p.ledgers, err = ledger.Open(p.layout.ledgers()); err != nil {
		return nil, err
	}
	p.cgroups = cgroup.New(config.CgroupParent, config.StateDir)
	if p.totalLimits, err = cgroup.NewLimits(config.MaxMemory, config.MaxProcesses); err != nil {
		return nil, err
	}
	p.disks = disk.NewMaker(p.layout.disks(), p.locks)
	p.space = disk.NewSpace(config.StateDir, config.MinFree, config.DiskOvercommit, p.layout.diskImages)
	p.images = image.NewStore(p.layout.images(), p.locks, p.log, config.Registries, p.space.CheckFile, p.imagesInUse)
	opened := false
	defer func() {
		if !opened {
			_ = p.held.Close()
			p.cgroups.Prune()
		}
	}()
	if p.agent, p.held, err = acquireAgent(config, p.layout, p.runtime.GVisor || config.Transport == TransportSocket); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	if err := p.acquireTrees(); err != nil {
		return nil, fmt.Errorf("root file system: %w", err)
	}
	if p.userIDs, err = userid.New(config.StateDir, config.UIDBase); err != nil {
		return nil, fmt.Errorf("user ids: %w", err)
	}
	p.warnOfOverlaps(ctx)
	p.sandboxes = directory.NewStore(driver{p}, directory.Config[*record]{
		Layout: p.layout.Layout, Locks: p.locks, Log: p.log, Read: readRecord, Fault: config.fault,
		Pool: pool.Config{Log: p.log, Check: checkPool, Parallel: 1}, Prefix: "pool.", Tokens: "local1",
		Fixed: []any{p.runtime.Name, config.Transport, config.Profile, config.CgroupParent, p.agent, p.host.Root, p.usesNamespaces()},
	})
	if p.adopted, err = p.recover(ctx); err != nil {
		p.awaitBackground()
		return nil, fmt.Errorf("finish what a previous server left half done: %w", err)
	}
	// The next start retries what fails here.
	err = errors.Join(p.reclaimIDs(), p.userIDs.Sweep(p.containers), p.images.Sweep(), p.images.Collect(ctx))
	if err != nil {
		p.log.LogAttrs(ctx, slog.LevelWarn, "cannot remove unused images and user ids now", slog.Any("error", err))
	}
	ctx, p.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	p.background.Go(func() { p.removals.Run(ctx) })
	p.background.Go(func() { oci.ReapOrphans(ctx, p.firstProcesses) })
	p.collect(ctx, p.layout.agents(), p.agentInUse)
	p.collect(ctx, p.layout.roots(), p.treeInUse)
	opened = true
	return p, nil
}

// runtimeOf returns the runtime that a sandbox was made with. A state directory
// may hold sandboxes of several runtimes.
func (p *Provider) runtimeOf(rec *record) (*oci.Runtime, error) {
	if rec == nil || rec.Runtime == "" || rec.Runtime == p.runtime.Name {
		return p.runtime, nil
	}
	return oci.New(rec.Runtime, p.layout.runtime())
}

// Close leaves all sandboxes running, unclaimed ones included.
func (p *Provider) Close() error {
	p.sandboxes.Close()
	p.stop(errClosed)
	p.images.Close()
	p.awaitBackground()
	errs := []error{p.held.Close()}
	if names, err := p.layout.Names(); err == nil && len(names) == 0 {
		p.cgroups.Prune()
	}
	return errors.Join(errs...)
}

var errClosed = errors.New("the provider is closed")

// closeTimeout limits the wait for removals. The next server finishes one that
// hangs in the kernel.
const closeTimeout = 5 * time.Second

func (p *Provider) awaitBackground() {
	done := make(chan struct{})
	go func() {
		p.background.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(closeTimeout):
	}
}
