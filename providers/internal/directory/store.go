// Package directory keeps sandboxes on substrates that do not store what Sandgate
// knows about them. Each sandbox is a directory of the state directory, with its record
// in a file. Servers may share a state directory.
//
// Who creates, changes, claims or deletes a sandbox holds the lock of its name. The
// directory and the record are made before anything else of the sandbox, and removed
// last. So whatever a crashed server leaves half done has a directory whose lock is
// free, and Settle removes it.
package directory

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/lock"
	"github.com/sandgate/sandgate/providers/internal/pool"
	"github.com/sandgate/sandgate/providers/internal/record"
)

// Driver makes, observes and removes sandboxes on one substrate.
type Driver[R Record] interface {
	// Build calls n.Make with the record of a new sandbox, and returns its results.
	Build(ctx context.Context, n *New[R]) (R, net.Conn, error)

	// Open connects to the agent of a sandbox that runs, and Connect also waits until
	// the agent of a started one has spoken.
	Open(ctx context.Context, d Dir, r R) (net.Conn, error)
	Connect(ctx context.Context, d Dir, r R) (net.Conn, error)

	// Destroy removes all of a sandbox, the directory last. r is nil if the record
	// cannot be read. It must be possible to repeat it after any error or crash. The
	// caller holds the lock of held's name; Destroy may transfer it.
	Destroy(ctx context.Context, held *lock.Lock, d Dir, container string, r R) error

	// Info returns a sandbox without asking the substrate, and Observe with the state
	// that the substrate reports.
	Info(name string, r R) providers.Info
	Observe(ctx context.Context, name string, r R) (providers.Info, error)

	// Alive returns a function that reports whether the container of a sandbox runs. The
	// function is used for one pass over many.
	Alive(ctx context.Context) func(id string, r R) (bool, error)

	// Removal reports whether a sandbox must be removed whatever its record says, and
	// why a removal failed that the driver retries, or "". The incarnation is the
	// record's, or empty if it cannot be read. It must not answer for another one:
	// servers that share the state directory may have replaced the sandbox.
	Removal(name, incarnation string) (decided bool, failure string)
}

// Config configures a Store.
type Config[R Record] struct {
	Layout Layout
	Locks  *lock.Table
	Log    *slog.Logger
	// Read returns the record in a directory.
	Read func(Dir) (R, error)
	Pool pool.Config
	// Tokens is the format of List's page tokens.
	Tokens record.Tokens
	// Prefix begins the names of pool members, which are also the names of their
	// containers.
	Prefix string
	// Fixed is all that a started sandbox cannot change any more, besides its spec.
	Fixed []any
	// Fault, if set, is called before each step. Its error fails the step.
	Fault func(ctx context.Context, step string) error
}

// Store is the sandboxes of a state directory.
type Store[R Record] struct {
	Config[R]
	driver Driver[R]
	pools  *pool.Controller[string, *claim[R]]
}

// NewStore returns the sandboxes of a state directory.
func NewStore[R Record](driver Driver[R], config Config[R]) *Store[R] {
	s := &Store[R]{Config: config, driver: driver}
	if s.Fault == nil {
		s.Fault = func(context.Context, string) error { return nil }
	}
	s.pools = pool.New(poolDriver[R]{s}, config.Pool)
	return s
}

// Close returns when nothing is done for the pools any more.
func (s *Store[R]) Close() { s.pools.Close() }

func release(held *lock.Lock, d Dir) { held.Release(!d.Exists()) }

// Change calls do with the record of an active or suspended sandbox, under its lock.
// Errors begin with the name of the operation.
func (s *Store[R]) Change(ctx context.Context, operation, name string, do func(Dir, R) (providers.Info, error)) (providers.Info, error) {
	d := s.Layout.Sandbox(name)
	if !d.Exists() {
		return providers.Info{}, fmt.Errorf("%s %s: %w", operation, name, providers.ErrNotFound)
	}
	held, err := s.Locks.Acquire(ctx, name)
	if err != nil {
		return providers.Info{}, err
	}
	defer release(held, d)
	r, err := s.Read(d)
	if err != nil {
		return providers.Info{}, fmt.Errorf("%s %s: %w", operation, name, err)
	}
	if !r.base().kept() {
		// Its lock was free: it is half made or half deleted.
		info := s.driver.Info(name, r)
		return info, providers.NotActive(info, "%s %s: it is %s", operation, name, r.base().Phase)
	}
	return do(d, r)
}

// Update changes the record.
func (s *Store[R]) Update(ctx context.Context, name string, c providers.Change) (providers.Info, error) {
	return s.Change(ctx, "update", name, func(d Dir, r R) (providers.Info, error) {
		r.base().Apply(c)
		if err := Write(d, r); err != nil {
			return providers.Info{}, err
		}
		return s.driver.Observe(ctx, name, r)
	})
}

// Delete ends a sandbox.
func (s *Store[R]) Delete(ctx context.Context, name string, c providers.Condition) error {
	d := s.Layout.Sandbox(name)
	notFound := fmt.Errorf("sandbox %s: %w", name, providers.ErrNotFound)
	// Without this check, an unknown name would get a lock file and wait for the lock.
	if !d.Exists() {
		return notFound
	}
	held, err := s.Locks.Acquire(ctx, name)
	if err != nil {
		return err
	}
	defer release(held, d)
	r, err := s.Read(d)
	switch {
	case errors.Is(err, providers.ErrNotFound) && !d.Exists():
		return notFound
	case errors.Is(err, providers.ErrNotFound), err == nil && r.base().Phase == Creating:
		// Its lock is free, so its creation failed with its server.
		if err := s.destroy(ctx, held, d, r); err != nil {
			return err
		}
		return notFound
	case errors.Is(err, record.ErrCorrupt):
		// Nothing of it runs, and the rest can be removed.
	case err != nil:
		// It may be read later, and then not meet the condition.
		return fmt.Errorf("delete %s: %w", name, err)
	case c.Incarnation != "" && c.Incarnation != r.base().Incarnation:
		return fmt.Errorf("sandbox %s: %w", name, providers.ErrReplaced)
	case r.base().kept() && c.InUse(r.base().LastActivity):
		return fmt.Errorf("sandbox %s: %w", name, providers.ErrInUse)
	default:
		s.markDeleting(ctx, d, r)
	}
	return s.destroy(ctx, held, d, r)
}

// markDeleting records the deletion, so that the next server finishes it if this one
// is killed. The record can't be written on a full disk, which only a deletion frees:
// the sandbox is then deleted without it. If the server is killed half way, the sandbox
// is FAILED and can be deleted again.
func (s *Store[R]) markDeleting(ctx context.Context, d Dir, r R) {
	r.base().Phase = Deleting
	if err := Write(d, r); err != nil {
		s.Log.LogAttrs(ctx, slog.LevelWarn, "deleting a sandbox without recording it first", slog.String("container", r.base().Container), slog.Any("error", err))
	}
}

// destroy removes a sandbox in any state. r is nil if the record cannot be read: the
// container then has the name of the directory.
func (s *Store[R]) destroy(ctx context.Context, held *lock.Lock, d Dir, r R) error {
	container := d.Name()
	if any(r) != any(*new(R)) {
		container = r.base().Container
	}
	return s.driver.Destroy(ctx, held, d, container, r)
}

// Outcome is the result of Settle.
type Outcome int

// The outcomes.
const (
	Busy    Outcome = iota // its lock is held
	Kept                   // it is whole
	Removed                // unless there is an error
)

// Settle removes a sandbox or pool member that is half made, half claimed or half
// deleted, or a member that has ended, unless its lock is held.
func (s *Store[R]) Settle(ctx context.Context, d Dir) (Outcome, error) {
	return s.settle(ctx, d, s.driver.Alive(ctx))
}

// Sweep settles all sandboxes and pool members.
func (s *Store[R]) Sweep(ctx context.Context) error {
	var errs []error
	alive := s.driver.Alive(ctx)
	for d, err := range s.Layout.All() {
		if err == nil {
			_, err = s.settle(ctx, d, alive)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (s *Store[R]) settle(ctx context.Context, d Dir, alive func(string, R) (bool, error)) (Outcome, error) {
	unfinished := func() (r R, is bool, err error) {
		r, err = s.Read(d)
		incarnation := ""
		if err == nil {
			incarnation = r.base().Incarnation
		}
		switch decided, _ := s.driver.Removal(d.Name(), incarnation); {
		case errors.Is(err, record.ErrCorrupt), errors.Is(err, providers.ErrNotFound):
			return r, d.Exists(), nil
		case err != nil || decided:
			return r, true, err
		case r.base().Phase == Unclaimed && filepath.Dir(string(d)) == s.Layout.Pool():
			runs, err := alive(d.Name(), r)
			return r, !runs, err
		case filepath.Dir(string(d)) == s.Layout.Pool():
			return r, true, nil
		}
		return r, !r.base().kept(), nil
	}
	if _, is, err := unfinished(); !is || err != nil {
		return Kept, err
	}
	held, err := s.Locks.Try(d.Name())
	if err != nil || held == nil {
		return Busy, err
	}
	defer release(held, d)
	r, is, err := unfinished()
	if !is || err != nil {
		return Kept, err
	}
	s.Log.LogAttrs(ctx, slog.LevelInfo, "removing a sandbox that is half made, half deleted or ended", slog.String("name", d.Name()))
	return Removed, s.destroy(ctx, held, d, r)
}
