package directory

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/lock"
	"github.com/sandgate/sandgate/providers/internal/record"
)

// cleanupTimeout bounds the removal of a sandbox that could not be created.
const cleanupTimeout = 30 * time.Second

// Create claims or makes a sandbox, or joins one that exists with the same spec. On the
// connection, nil for one that it joins, the agent has spoken.
func (s *Store[R]) Create(ctx context.Context, name string, spec providers.Spec) (providers.Info, net.Conn, error) {
	held, err := s.Locks.Acquire(ctx, name)
	if err != nil {
		return providers.Info{}, nil, err
	}
	d := s.Layout.Sandbox(name)
	defer release(held, d)
	old, err := s.Read(d)
	switch {
	case err == nil && old.base().kept():
		info, err := s.join(ctx, name, old, spec)
		return info, nil, err
	case err == nil, errors.Is(err, record.ErrCorrupt), errors.Is(err, providers.ErrNotFound) && d.Exists():
		// Its creator is gone: it does not hold the lock.
		if err := s.destroy(ctx, held, d, old); err != nil {
			return providers.Info{}, nil, err
		}
	case !errors.Is(err, providers.ErrNotFound):
		return providers.Info{}, nil, err
	}
	r, conn, err := s.claim(ctx, name, spec)
	if err == nil && conn == nil {
		r, conn, err = s.Build(ctx, held, d, spec, Active)
	}
	if err != nil {
		return providers.Info{}, nil, err
	}
	info := s.driver.Info(name, r)
	info.State, info.Created = providers.StateActive, true
	return info, conn, nil
}

// join returns a sandbox that exists already.
func (s *Store[R]) join(ctx context.Context, name string, r R, spec providers.Spec) (providers.Info, error) {
	if r.base().Spec.Hash != spec.Hash {
		return providers.Info{}, fmt.Errorf("sandbox %s: %w", name, providers.ErrExists)
	}
	info, err := s.driver.Observe(ctx, name, r)
	switch {
	case err != nil:
		return providers.Info{}, err
	case info.State == providers.StateSuspended:
		return providers.Info{}, providers.NotActive(info, "sandbox %q is suspended and must be resumed first", info.Spec.ID)
	case info.State != providers.StateActive:
		return providers.Info{}, providers.NotActive(info, "sandbox %q has ended (%s) and must be deleted first", info.Spec.ID, info.Message)
	}
	return info, nil
}

// Build makes the sandbox of a directory, or leaves nothing behind. Its record's phase
// is then last; a sandbox of a pool has last Unclaimed. The caller holds the lock.
func (s *Store[R]) Build(ctx context.Context, held *lock.Lock, d Dir, spec providers.Spec, last Phase) (R, net.Conn, error) {
	if ctx.Err() != nil {
		return *new(R), nil, fmt.Errorf("create %s: %w", d.Name(), context.Cause(ctx))
	}
	n := &New[R]{
		Base: Base{Sandbox: record.New(spec), Phase: Creating, Container: d.Name(), Incarnation: record.Random()},
		Dir:  d, Spec: spec, Last: last, store: s, held: held,
	}
	if last == Unclaimed {
		n.Fit = s.fit(spec, n.Incarnation)
	}
	return s.driver.Build(ctx, n)
}

// New is a sandbox that is about to be made.
type New[R Record] struct {
	Base // of its record
	Dir  Dir
	Spec providers.Spec
	Last Phase // of the finished sandbox

	store *Store[R]
	held  *lock.Lock
}

// Make writes the record, calls start and writes the record again, with the last phase.
// start makes everything else, adds what it makes to the record, and returns a
// connection on which the agent has spoken. On an error nothing is left behind.
func (n *New[R]) Make(ctx context.Context, r R, start func() (net.Conn, error)) (R, net.Conn, error) {
	conn, err := n.make(ctx, r, start)
	if err == nil {
		return r, conn, nil
	}
	// Clean up even if the context has ended.
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if removal := n.store.destroy(clean, n.held, n.Dir, r); removal != nil {
		n.store.Log.LogAttrs(ctx, slog.LevelWarn, "what is left of a creation is removed later", slog.String("name", n.Dir.Name()), slog.Any("error", removal))
	}
	return *new(R), nil, err
}

func (n *New[R]) make(ctx context.Context, r R, start func() (net.Conn, error)) (net.Conn, error) {
	if err := n.store.Fault(ctx, "make its directory"); err != nil {
		return nil, err
	}
	// That of a pool member exists.
	if err := os.Mkdir(string(n.Dir), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	if err := n.store.Fault(ctx, "write its record"); err != nil {
		return nil, err
	}
	if err := Write(n.Dir, r); err != nil {
		return nil, err
	}
	conn, err := start()
	if err != nil {
		return nil, err
	}
	if n.Last == Unclaimed {
		// An agent closes a connection that stays silent.
		_ = conn.Close()
	}
	r.base().Phase = n.Last
	if err = n.store.Fault(ctx, "record that it is ready"); err == nil {
		err = Write(n.Dir, r)
	}
	if err != nil {
		_ = conn.Close()
	}
	return conn, err
}
