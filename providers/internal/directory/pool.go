package directory

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/lock"
	"github.com/sandgate/sandgate/providers/internal/pool"
	"github.com/sandgate/sandgate/providers/internal/record"
)

// A member of a pool is started completely in a directory of the pool, under a name
// that no sandbox can have. A claim has two steps, under the locks of both names: it
// writes the claimed sandbox's record into the directory, and it renames the directory
// to the sandboxes. The rename is the claim. A crash before it leaves a record in the
// pool that is not unclaimed any more, which Settle removes like a half-made sandbox. A
// crash after it leaves a whole sandbox. The container keeps the name of the member.

// answerTimeout is how long a started agent may take to answer a claim.
const answerTimeout = 5 * time.Second

var errNoAnswer = fmt.Errorf("the agent did not answer within %v: %w", answerTimeout, providers.ErrStartTimeout)

// KeepPools drops what no pool needs before it returns.
func (s *Store[R]) KeepPools(ctx context.Context, pools []providers.Pool) error {
	return s.pools.Keep(ctx, pools)
}

// PoolStatus counts what the state directory holds, whichever server made it.
func (s *Store[R]) PoolStatus(ctx context.Context, template string) (providers.PoolStatus, error) {
	status, err := s.pools.Status(ctx, template)
	if err != nil {
		return providers.PoolStatus{}, err
	}
	names, err := s.Layout.Names()
	if err != nil {
		return providers.PoolStatus{}, err
	}
	for _, name := range names {
		if r, err := s.Read(s.Layout.Sandbox(name)); err == nil && r.base().FromPool && r.base().Spec.Template == template {
			status.Active++
		}
	}
	status.Total += status.Active
	return status, nil
}

// prefix begins the names of a template's pool. No sandbox's and no template's name
// has a dot.
func (s *Store[R]) prefix(template string) string { return s.Prefix + template + "." }

// fit identifies all that a started sandbox cannot change any more.
func (s *Store[R]) fit(spec providers.Spec, salt string) string {
	sum := hmac.New(sha256.New, []byte(salt))
	// Hash's Write returns no error, and a Spec was JSON before.
	_ = json.NewEncoder(sum).Encode(append([]any{pool.Fixed(spec)}, s.Fixed...))
	return hex.EncodeToString(sum.Sum(nil)[:20])
}

// claim is what a creation wants from a pool.
type claim[R Record] struct {
	name string
	spec providers.Spec
	lock locking
	r    R // of the claimed sandbox
}

// locking takes a lock, or returns nil where it does not wait for it.
type locking func(ctx context.Context, name string) (*lock.Lock, error)

// claim makes a started sandbox of the template's pool the one of this name. The
// connection is nil if none fits. The caller holds the name's lock.
func (s *Store[R]) claim(ctx context.Context, name string, spec providers.Spec) (r R, conn net.Conn, err error) {
	if ctx.Err() != nil {
		return r, nil, fmt.Errorf("create %s: %w", name, context.Cause(ctx))
	}
	// The server that has just started a member may still hold its lock. Members with
	// a free lock go first, so that concurrent claims do not block each other.
	try := func(_ context.Context, name string) (*lock.Lock, error) { return s.Locks.Try(name) }
	for _, take := range []locking{try, s.Locks.Acquire} {
		c := &claim[R]{name: name, spec: spec, lock: take}
		conn, err := s.pools.Claim(ctx, spec, c)
		if err != nil || conn != nil {
			return c.r, conn, err
		}
	}
	return r, nil, nil
}

// poolDriver is the state directory as its pools see it. A member is known by the name
// of its directory.
type poolDriver[R Record] struct{ *Store[R] }

// Start takes turns with all servers of the state directory, so that they do not
// overfill a pool.
func (s poolDriver[R]) Start(ctx context.Context, want providers.Pool, name string) error {
	id := s.prefix(want.Template) + name
	held, err := s.reserve(ctx, want, id)
	if err != nil {
		return err
	}
	d := s.Layout.Pooled(id)
	defer release(held, d)
	if _, _, err = s.Build(ctx, held, d, want.Spec, Unclaimed); err != nil {
		_ = os.Remove(string(d)) // if nothing is in it
		return fmt.Errorf("start a sandbox: %w", err)
	}
	return nil
}

// reserve makes the directory of a new member, unless the pool is full, so that others
// count it, and returns its lock.
func (s poolDriver[R]) reserve(ctx context.Context, want providers.Pool, id string) (*lock.Lock, error) {
	turn, err := s.Locks.Acquire(ctx, "_fill")
	if err != nil {
		return nil, err
	}
	defer turn.Release(true)
	have := 0
	for m, err := range s.Unclaimed(ctx, &want.Spec, false) {
		if err != nil {
			return nil, err
		}
		if m.State == pool.Ready || m.State == pool.Starting {
			have++
		}
	}
	if have >= want.Target {
		return nil, pool.ErrFull
	}
	held, err := s.Locks.Acquire(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(string(s.Layout.Pooled(id)), 0o700); err != nil {
		held.Release(true)
		return nil, err
	}
	return held, nil
}

// Unclaimed reads records only as far as they are wanted: a claim needs one.
func (s poolDriver[R]) Unclaimed(ctx context.Context, spec *providers.Spec, _ bool) iter.Seq2[pool.Member[string], error] {
	return func(yield func(pool.Member[string], error) bool) {
		all, err := namesIn(s.Layout.Pool())
		if err != nil {
			yield(pool.Member[string]{}, err)
			return
		}
		// Callers that claim at the same time should not try the same ones.
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		alive := s.driver.Alive(ctx)
		for _, id := range all {
			if spec != nil && (!pool.IsTemplateName(spec.Template) || !strings.HasPrefix(id, s.prefix(spec.Template))) {
				continue
			}
			m, is, err := s.member(id, spec, alive)
			if err != nil {
				yield(m, err)
				return
			}
			if is && !yield(m, nil) {
				return
			}
		}
	}
}

// member returns what there is in a directory of the pools. One whose removal is
// retried is not a member any more.
func (s poolDriver[R]) member(id string, spec *providers.Spec, alive func(string, R) (bool, error)) (m pool.Member[string], is bool, err error) {
	if _, failure := s.driver.Removal(id, ""); failure != "" {
		return m, false, nil
	}
	m = pool.Member[string]{Name: id[strings.LastIndexByte(id, '.')+1:], Value: id}
	d := s.Layout.Pooled(id)
	r, err := s.Read(d)
	switch {
	case errors.Is(err, providers.ErrNotFound) && !d.Exists():
		return m, false, nil // it was claimed or removed meanwhile
	case err == nil && r.base().Phase == Unclaimed:
		m.Created = r.base().CreateTime
		if spec != nil && r.base().Fit != s.fit(*spec, r.base().Incarnation) {
			m.State = pool.Stale
			return m, true, nil
		}
		if runs, err := alive(id, r); runs || err != nil {
			return m, true, err
		}
	}
	// The server that starts, claims or deletes it holds its lock.
	m.State = pool.Starting
	held, err := s.Locks.Try(id)
	if err == nil && held != nil {
		release(held, d)
		m.State = pool.Broken
	}
	return m, true, nil
}

// Claim makes a member the sandbox of a creation that holds its name's lock. If it
// fails, the creation goes on without it.
func (s poolDriver[R]) Claim(ctx context.Context, id string, c *claim[R]) (net.Conn, error) {
	conn, err := s.claimMember(ctx, id, c)
	if err != nil && ctx.Err() == nil {
		s.Log.LogAttrs(ctx, slog.LevelWarn, "a sandbox of a pool could not be claimed", slog.String("pooled", id), slog.Any("error", err))
		err = nil
	}
	return conn, err
}

func (s poolDriver[R]) claimMember(ctx context.Context, id string, c *claim[R]) (net.Conn, error) {
	held, err := c.lock(ctx, id)
	if err != nil || held == nil {
		return nil, err
	}
	d := s.Layout.Pooled(id)
	defer release(held, d)
	r, err := s.Read(d)
	if err != nil || r.base().Phase != Unclaimed || r.base().Fit != s.fit(c.spec, r.base().Incarnation) {
		return nil, nil // by now
	}
	soon, cancel := context.WithTimeoutCause(ctx, answerTimeout, errNoAnswer)
	defer cancel()
	conn, err := s.driver.Connect(soon, d, r)
	if err != nil {
		if ctx.Err() == nil {
			s.markDeleting(ctx, d, r)
			err = errors.Join(err, s.destroy(ctx, held, d, r))
		}
		return nil, err
	}
	b := r.base()
	b.Sandbox, b.Phase, b.FromPool, b.Fit = record.New(c.spec), Active, true, ""
	if err = s.Fault(ctx, "record the claim"); err == nil {
		err = Write(d, r)
	}
	if err == nil {
		err = s.Fault(ctx, "move the claim")
	}
	if err == nil {
		err = os.Rename(string(d), string(s.Layout.Sandbox(c.name)))
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	c.r = r
	return conn, nil
}

// Drop deletes a member unless it is claimed first. One that cannot be deleted now and
// whose removal is retried is done with.
func (s poolDriver[R]) Drop(ctx context.Context, m pool.Member[string]) error {
	held, err := s.Locks.Acquire(ctx, m.Value)
	if err != nil {
		return err
	}
	d := s.Layout.Pooled(m.Value)
	defer release(held, d)
	r, err := s.Read(d)
	switch {
	case errors.Is(err, providers.ErrNotFound) && !d.Exists():
		return nil
	case err == nil:
		s.markDeleting(ctx, d, r)
	case !errors.Is(err, record.ErrCorrupt) && !errors.Is(err, providers.ErrNotFound):
		return err
	}
	err = s.destroy(ctx, held, d, r)
	if _, failure := s.driver.Removal(m.Value, ""); err != nil && failure != "" {
		s.Log.LogAttrs(ctx, slog.LevelWarn, "a sandbox of a pool could not be deleted and is tried again", slog.String("pooled", m.Value), slog.Any("error", err))
		return nil
	}
	return err
}
