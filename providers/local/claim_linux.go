package local

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/lock"
	"github.com/sandgate/sandgate/providers/internal/pool"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// A member of a pool is started completely in a directory of the pool, under a
// name that no sandbox can have. A claim has two steps, under the locks of both
// names: it writes the claimed sandbox's record into the directory, and it renames
// the directory to the sandboxes. The rename is the claim. A crash before it
// leaves a record in the pool that is not unclaimed any more; the next look
// removes it like a half-made sandbox. A crash after it leaves a whole sandbox.
//
// The container and the cgroups keep the name of the member, which the record
// holds. Everything else is in the directory.

// pooledPrefix is what the names of a template's pool begin with. No sandbox's
// and no template's name has a dot.
func pooledPrefix(template string) string { return "pool." + template + "." }

// fitOf identifies all that a started sandbox cannot change any more.
func (p *Provider) fitOf(spec providers.Spec, salt string) string {
	sum := hmac.New(sha256.New, []byte(salt))
	// Hash's Write returns no error, and a Spec was JSON before.
	_ = json.NewEncoder(sum).Encode([]any{pool.Fixed(spec), p.runtime.Name, p.config.Transport, p.config.Profile, p.config.CgroupParent, p.agent, p.host.Root})
	return hex.EncodeToString(sum.Sum(nil)[:20])
}

// claim is what a creation wants from a pool.
type claim struct {
	name string
	spec providers.Spec
	lock locking
	rec  *record // of the claimed sandbox
}

// locking takes a lock, or returns nil where it does not wait for it.
type locking func(ctx context.Context, name string) (*lock.Lock, error)

// claim makes a started sandbox of the template's pool the one of this name,
// and returns nil when none fits. The caller holds the name's lock.
func (p *Provider) claim(ctx context.Context, name string, spec providers.Spec) (*record, net.Conn, error) {
	if ctx.Err() != nil {
		return nil, nil, fmt.Errorf("create %s: %w", name, context.Cause(ctx))
	}
	// The server that has just started a member may still hold its lock. Members
	// with a free lock go first, so that concurrent claims do not block each other.
	try := func(_ context.Context, name string) (*lock.Lock, error) { return p.locks.Try(name) }
	for _, take := range []locking{try, p.locks.Acquire} {
		c := &claim{name: name, spec: spec, lock: take}
		conn, err := p.pools.Claim(ctx, spec, c)
		if err != nil || conn != nil {
			return c.rec, conn, err
		}
	}
	return nil, nil, nil
}

func (p *Provider) claimMember(ctx context.Context, id string, c *claim) (net.Conn, error) {
	held, err := c.lock(ctx, id)
	if err != nil || held == nil {
		return nil, err
	}
	b := p.layout.pooled(id)
	defer func() { held.Release(!exists(string(b))) }()
	rec, err := readRecord(b)
	if err != nil || rec.Phase != phaseUnclaimed || rec.Fit != p.fitOf(c.spec, rec.Incarnation) || !rec.Init.Alive() {
		return nil, nil // by now
	}
	soon, cancel := context.WithTimeoutCause(ctx, answerTimeout, errNoAnswer)
	defer cancel()
	conn, err := p.proveReady(soon, b, rec)
	if err != nil {
		if ctx.Err() == nil {
			p.markDeleting(ctx, held, b, rec)
			err = errors.Join(err, p.destroy(ctx, held, b, id, rec))
		}
		return nil, err
	}
	rec.Phase, rec.FromPool, rec.Fit = phaseActive, true, ""
	rec.Sandbox = shared.New(c.spec)
	if err = p.fault(ctx, "record the claim"); err == nil {
		err = rec.write(b)
	}
	if err == nil {
		err = p.fault(ctx, "move the claim")
	}
	if err == nil {
		err = os.Rename(string(b), string(p.layout.sandbox(c.name)))
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	c.rec = rec
	return conn, nil
}

// answerTimeout is how long a started agent may take to answer a claim.
const answerTimeout = 5 * time.Second

var errNoAnswer = fmt.Errorf("the agent did not answer within %v: %w", answerTimeout, providers.ErrStartTimeout)

// settlePooled removes a member that is half made, half claimed, half deleted or
// ended, unless its lock is held.
func (p *Provider) settlePooled(ctx context.Context, id string) (settled, error) {
	b := p.layout.pooled(id)
	whole := func() (*record, bool, error) {
		rec, err := readRecord(b)
		switch {
		case err == nil:
			return rec, rec.Phase == phaseUnclaimed && rec.Init.Alive(), nil
		case errors.Is(err, shared.ErrCorrupt), errors.Is(err, providers.ErrNotFound):
			return nil, false, nil
		}
		return nil, false, err
	}
	if _, ok, err := whole(); ok || err != nil {
		return settledKept, err
	}
	held, err := p.locks.Try(id)
	if err != nil || held == nil {
		return settledBusy, err
	}
	defer func() { held.Release(!exists(string(b))) }()
	rec, ok, err := whole()
	if ok || err != nil {
		return settledKept, err
	}
	if rec == nil && !exists(string(b)) {
		return settledRemoved, nil
	}
	p.log.LogAttrs(ctx, slog.LevelInfo, "removing a sandbox of a pool that is not whole", slog.String("pooled", id))
	return settledRemoved, p.destroy(ctx, held, b, id, rec)
}
