package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sandgate/sandgate/providers"
)

const (
	startTimeout   = 30 * time.Second
	cleanupTimeout = 30 * time.Second
)

var errSlowStart = fmt.Errorf("the agent did not answer within %v: %w", startTimeout, providers.ErrStartTimeout)

// Create starts a container whose first process is the agent, with one call of
// the runtime, and returns when the agent has spoken.
func (p *Provider) Create(ctx context.Context, name string, spec providers.Spec) (providers.Info, error) {
	options, err := decodeOptions(spec)
	if err != nil {
		return providers.Info{}, err
	}
	if err := checkResources(spec.Resources); err != nil {
		return providers.Info{}, err
	}
	held, err := p.locks.acquire(ctx, name)
	if err != nil {
		return providers.Info{}, err
	}
	b := p.layout.sandbox(name)
	defer func() { held.release(!exists(string(b))) }()

	old, err := readRecord(b)
	switch {
	case err == nil && old.Phase == phaseActive:
		return p.join(name, old, spec)
	case err == nil || errors.Is(err, errCorrupt) || exists(string(b)):
		// Whoever began this one is gone: it does not hold the lock.
		if err := p.destroy(ctx, name, old); err != nil {
			return providers.Info{}, fmt.Errorf("remove a half-made sandbox: %w", err)
		}
	case !errors.Is(err, providers.ErrNotFound):
		return providers.Info{}, err
	}

	rec, conn, err := p.build(ctx, name, spec, options)
	if err != nil {
		// The context may have ended; what was begun must go all the same.
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		return providers.Info{}, errors.Join(err, p.destroy(clean, name, rec))
	}
	p.keepWarm(name, conn)
	info := p.info(name, rec)
	info.Created = true
	return info, nil
}

// join answers for a sandbox that is there already.
func (p *Provider) join(name string, rec *record, spec providers.Spec) (providers.Info, error) {
	if rec.Spec.Hash != spec.Hash {
		return providers.Info{}, fmt.Errorf("sandbox %s: %w", name, providers.ErrExists)
	}
	info := p.info(name, rec)
	if info.State != providers.StateActive {
		return providers.Info{}, fmt.Errorf("sandbox %q has ended (%s) and must be deleted first: %w", rec.Spec.ID, info.Message, providers.ErrNotActive)
	}
	return info, nil
}

// build makes the sandbox. On an error the returned record says what there is to
// remove.
func (p *Provider) build(ctx context.Context, name string, spec providers.Spec, options templateOptions) (*record, net.Conn, error) {
	b := p.layout.sandbox(name)
	incarnation, err := newIncarnation()
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	rec := &record{
		Phase: phaseCreating, Spec: withoutValues(spec), Incarnation: incarnation, CreateTime: now, LastActivity: now,
		Runtime: p.engine.name, Way: p.config.Way, Profile: p.config.Profile, WritableRoot: options.WritableRoot && spec.Image != "",
	}
	if err := os.Mkdir(string(b), 0o700); err != nil {
		return rec, nil, err
	}
	if err := rec.write(b); err != nil {
		return rec, nil, err
	}
	pl, err := p.plan(ctx, name, rec, spec, options)
	if err != nil {
		return rec, nil, err
	}
	container, err := pl.container()
	if err != nil {
		return rec, nil, err
	}
	if err := writeJSON(b.config(), container); err != nil {
		return rec, nil, err
	}
	if err := writeJSON(b.connect(), pl.connect()); err != nil {
		return rec, nil, err
	}
	complaints, err := newNote()
	if err != nil {
		return rec, nil, err
	}
	defer complaints.close()
	if err := p.start(ctx, pl, rec, complaints); err != nil {
		return rec, nil, startError(ctx, err)
	}
	start, cancel := context.WithTimeoutCause(ctx, startTimeout, errSlowStart)
	defer cancel()
	conn, err := p.proveReady(start, name, rec)
	if err != nil {
		if said := complaints.text(); said != "" {
			err = fmt.Errorf("%w: it wrote: %s", err, said)
		}
		return rec, nil, err
	}
	rec.Phase = phaseActive
	if err := rec.write(b); err != nil {
		return rec, nil, errors.Join(err, conn.Close())
	}
	return rec, conn, nil
}

// start has the runtime start the container.
func (p *Provider) start(ctx context.Context, pl *plan, rec *record, complaints *note) error {
	b := p.layout.sandbox(pl.name)
	var files []*os.File
	if pl.socket {
		file, err := listenUnix(string(b), socketName)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		files = append(files, file)
	}
	run := func() error {
		if err := p.mountFor(pl, rec); err != nil {
			return err
		}
		return p.engine.run(ctx, pl.name, b, complaints, files...)
	}
	if err := p.prepareDisk(ctx, pl, rec); err != nil {
		return err
	}
	if pl.private() {
		own := run
		run = func() error { return privately(own) }
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := run(); err != nil {
		return err
	}
	pid, err := readPID(b.pid())
	if err != nil {
		return err
	}
	rec.Init, err = findProcess(pid)
	if err != nil {
		return fmt.Errorf("the agent ended at once: %w: %s", providers.ErrAgentCannotStart, complaints.text())
	}
	return nil
}

func startError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("start the sandbox: %w", errors.Join(context.Cause(ctx), err))
	}
	for _, known := range []error{providers.ErrInvalid, providers.ErrAgentCannotStart, providers.ErrExhausted} {
		if errors.Is(err, known) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", providers.ErrStartFailed, err)
}

func readPID(path string) (int, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}

// makeWorkdir makes the directory in which commands start where it lies in a
// writable place and is not there yet.
func makeWorkdir(disk, workdir string, uid, gid uint32) error {
	for _, pl := range places {
		rest, below := strings.CutPrefix(path.Clean(workdir), pl.target+"/")
		if pl.target == "" || !below {
			continue
		}
		dir := filepath.Join(disk, pl.dir)
		for _, part := range strings.Split(rest, "/") {
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
			if err := os.Chown(dir, int(uid), int(gid)); err != nil {
				return err
			}
		}
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
