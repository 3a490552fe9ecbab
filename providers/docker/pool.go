package docker

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
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// A member of a pool is started completely, with its record in a directory of the
// pool. A claim has two steps, under the locks of both names: it writes the claimed
// sandbox's record into the directory, and it renames the directory to the sandboxes.
// The rename is the claim. A crash before it leaves a record in the pool that is not
// unclaimed any more, which the next sweep removes like a half-made sandbox. A crash
// after it leaves a whole sandbox. The container keeps the name of the member.

const (
	// refillDelay leaves the first command of a claimed sandbox alone.
	refillDelay = 100 * time.Millisecond
	// answerTimeout is how long a started agent may take to answer a claim.
	answerTimeout = 5 * time.Second
)

var errNoAnswer = fmt.Errorf("the agent did not answer within %v: %w", answerTimeout, providers.ErrStartTimeout)

// pooledPrefix begins the names of a template's pool. No sandbox's and no template's
// name has a dot.
func pooledPrefix(template string) string { return "sandgate-pool." + template + "." }

// fitOf identifies all that a started sandbox cannot change any more.
func (p *Provider) fitOf(spec providers.Spec, salt string) string {
	sum := hmac.New(sha256.New, []byte(salt))
	agent, _ := p.agentDigest("amd64") // any: it tells versions apart
	// Hash's Write returns no error, and a Spec was JSON before.
	_ = json.NewEncoder(sum).Encode([]any{pool.Fixed(spec), p.config.Image, p.config.Transport, agent})
	return hex.EncodeToString(sum.Sum(nil)[:20])
}

// KeepPools drops what no pool needs before it returns.
func (p *Provider) KeepPools(ctx context.Context, pools []providers.Pool) error {
	return p.pools.Keep(ctx, pools)
}

func checkPool(want providers.Pool) error {
	if err := pool.CheckTemplate(want); err != nil {
		return err
	}
	if want.Spec.Image != "" {
		if _, err := checkImage(want.Spec.Image); err != nil {
			return err
		}
	}
	_, err := decodeOptions(want.Spec)
	return err
}

// PoolStatus counts what the state directory holds, whichever server made it.
func (p *Provider) PoolStatus(ctx context.Context, template string) (providers.PoolStatus, error) {
	status, err := p.pools.Status(ctx, template)
	if err != nil {
		return providers.PoolStatus{}, err
	}
	all, err := names(p.layout.sandboxes())
	if err != nil {
		return providers.PoolStatus{}, err
	}
	for _, name := range all {
		if rec, err := readRecord(p.layout.sandbox(name)); err == nil && rec.FromPool && rec.Spec.Template == template {
			status.Active++
		}
	}
	status.Total += status.Active
	return status, nil
}

// claim is what a creation wants from a pool.
type claim struct {
	name string
	spec providers.Spec
	lock func(ctx context.Context, name string) (*lock.Lock, error) // nil where it does not wait
	rec  *record                                                    // of the claimed sandbox
}

// claim makes a started sandbox of the template's pool the one of this name, and
// returns nil if none fits. The caller holds the name's lock.
func (p *Provider) claim(ctx context.Context, name string, spec providers.Spec) (*record, net.Conn, error) {
	if ctx.Err() != nil {
		return nil, nil, fmt.Errorf("create %s: %w", name, context.Cause(ctx))
	}
	// The server that has just started a member may still hold its lock. Members with
	// a free lock go first, so that concurrent claims do not block each other.
	try := func(_ context.Context, name string) (*lock.Lock, error) { return p.locks.Try(name) }
	for _, take := range []func(context.Context, string) (*lock.Lock, error){try, p.locks.Acquire} {
		c := &claim{name: name, spec: spec, lock: take}
		conn, err := p.pools.Claim(ctx, spec, c)
		if err != nil || conn != nil {
			return c.rec, conn, err
		}
	}
	return nil, nil, nil
}

// poolDriver is the state directory as its pools see it. A member is known by the name
// of its directory.
type poolDriver struct{ p *Provider }

// Start takes turns with all servers of the state directory, so that they do not
// overfill a pool.
func (d poolDriver) Start(ctx context.Context, want providers.Pool, name string) error {
	p := d.p
	o, err := decodeOptions(want.Spec)
	if err != nil {
		return err
	}
	id := pooledPrefix(want.Template) + name
	held, err := d.reserve(ctx, want, id)
	if err != nil {
		return err
	}
	h := p.layout.pooled(id)
	defer func() { held.Release(!h.exists()) }()
	if _, _, err = p.build(ctx, h, id, want.Spec, o, phaseUnclaimed); err != nil {
		return fmt.Errorf("start a sandbox: %w", err)
	}
	return nil
}

// reserve makes the directory of a new member, unless the pool is full, so that others
// count it, and returns its lock.
func (d poolDriver) reserve(ctx context.Context, want providers.Pool, id string) (*lock.Lock, error) {
	turn, err := d.p.locks.Acquire(ctx, "_fill")
	if err != nil {
		return nil, err
	}
	defer turn.Release(true)
	have := 0
	for m, err := range d.Unclaimed(ctx, &want.Spec, false) {
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
	held, err := d.p.locks.Acquire(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(string(d.p.layout.pooled(id)), 0o700); err != nil {
		held.Release(true)
		return nil, err
	}
	return held, nil
}

// Unclaimed reads records only as far as they are wanted: a claim needs one.
func (d poolDriver) Unclaimed(ctx context.Context, spec *providers.Spec, _ bool) iter.Seq2[pool.Member[string], error] {
	return func(yield func(pool.Member[string], error) bool) {
		all, err := names(d.p.layout.pool())
		if err != nil {
			yield(pool.Member[string]{}, err)
			return
		}
		// Callers that claim at the same time should not try the same ones.
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		alive := running{p: d.p}
		for _, id := range all {
			if spec != nil && !strings.HasPrefix(id, pooledPrefix(spec.Template)) {
				continue
			}
			m, ok, err := d.p.member(ctx, id, spec, &alive)
			if err != nil {
				yield(m, err)
				return
			}
			if ok && !yield(m, nil) {
				return
			}
		}
	}
}

// member returns what there is in a directory of the pools.
func (p *Provider) member(ctx context.Context, id string, spec *providers.Spec, alive *running) (m pool.Member[string], ok bool, err error) {
	m = pool.Member[string]{Name: id[strings.LastIndexByte(id, '.')+1:], Value: id}
	h := p.layout.pooled(id)
	rec, err := readRecord(h)
	switch {
	case errors.Is(err, providers.ErrNotFound) && !h.exists():
		return m, false, nil // it was claimed or removed meanwhile
	case err == nil && rec.Phase == phaseUnclaimed:
		m.Created = rec.CreateTime
		if spec != nil && rec.Fit != p.fitOf(*spec, rec.Incarnation) {
			m.State = pool.Stale
			return m, true, nil
		}
		runs, err := alive.has(ctx, rec.Container)
		if err == nil && !runs {
			// It may have started after the list.
			claimed := *rec
			claimed.Phase = phaseActive
			var info providers.Info
			info, err = p.observe(ctx, id, &claimed)
			runs = info.State == providers.StateActive
		}
		if err == nil && !runs {
			m.State = pool.Broken
		}
		return m, true, err
	}
	// The server that starts, claims or deletes it holds its lock.
	held, err := p.locks.Try(id)
	if err == nil && held != nil {
		held.Release(!h.exists())
		m.State = pool.Broken
		return m, true, nil
	}
	m.State = pool.Starting
	return m, true, err
}

// Claim makes a member the sandbox of a creation that holds its name's lock. If it
// fails, the creation goes on without it.
func (d poolDriver) Claim(ctx context.Context, id string, c *claim) (net.Conn, error) {
	conn, err := d.p.claimMember(ctx, id, c)
	if err != nil && ctx.Err() == nil {
		d.p.log.LogAttrs(ctx, slog.LevelWarn, "a sandbox of a pool could not be claimed", slog.String("pooled", id), slog.Any("error", err))
		err = nil
	}
	return conn, err
}

func (p *Provider) claimMember(ctx context.Context, id string, c *claim) (net.Conn, error) {
	held, err := c.lock(ctx, id)
	if err != nil || held == nil {
		return nil, err
	}
	h := p.layout.pooled(id)
	defer func() { held.Release(!h.exists()) }()
	rec, err := readRecord(h)
	if err != nil || rec.Phase != phaseUnclaimed || rec.Fit != p.fitOf(c.spec, rec.Incarnation) {
		return nil, nil // by now
	}
	soon, cancel := context.WithTimeoutCause(ctx, answerTimeout, errNoAnswer)
	defer cancel()
	conn, err := p.spoken(soon, h, rec)
	if err != nil {
		if ctx.Err() == nil {
			err = errors.Join(err, p.destroy(ctx, h, id, rec))
		}
		return nil, err
	}
	rec.Phase, rec.FromPool, rec.Fit = phaseActive, true, ""
	rec.Sandbox = shared.New(c.spec)
	if err = rec.write(h); err == nil {
		err = os.Rename(string(h), string(p.layout.sandbox(c.name)))
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	c.rec = rec
	return conn, nil
}

// Drop deletes a member unless it is claimed first.
func (d poolDriver) Drop(ctx context.Context, m pool.Member[string]) error {
	p, id := d.p, m.Value
	held, err := p.locks.Acquire(ctx, id)
	if err != nil {
		return err
	}
	h := p.layout.pooled(id)
	defer func() { held.Release(!h.exists()) }()
	if !h.exists() {
		return nil
	}
	rec, err := readRecord(h)
	if err == nil {
		rec.Phase = phaseDeleting
		err = rec.write(h)
	}
	if err != nil && !errors.Is(err, shared.ErrCorrupt) && !errors.Is(err, providers.ErrNotFound) {
		return err
	}
	return p.destroy(ctx, h, id, rec)
}
