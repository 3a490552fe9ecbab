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
	"regexp"
	"strings"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local/lock"
)

// A sandbox of a pool is made whole in a directory of the pool, under a name
// that no sandbox can have, and is claimed in two steps under the locks of both
// names: its record becomes the claimed sandbox's, and its directory moves to
// the sandboxes. The move is the claim. Whoever is killed before it leaves a
// record in the pool that is not unclaimed any more, which is removed as a half
// made sandbox is; whoever is killed after it leaves a whole sandbox.
//
// What was named after the sandbox of the pool keeps that name: its container
// and its cgroups, which the record knows. The rest is in the directory.

var poolName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// pooledPrefix is what the names of a template's pool begin with. No sandbox's
// and no template's name has a dot.
func pooledPrefix(template string) string { return "pool." + template + "." }

// fitOf identifies all that a started sandbox cannot change any more. What the
// provider only keeps is not in it.
func (p *Provider) fitOf(spec providers.Spec, salt string) string {
	spec.Tenant, spec.ID, spec.Hash, spec.Labels, spec.TTL, spec.IdleTTL, spec.Access = "", "", "", nil, 0, 0, nil
	sum := hmac.New(sha256.New, []byte(salt))
	// Hash's Write returns no error, and a Spec was JSON before.
	_ = json.NewEncoder(sum).Encode([]any{spec, p.runtime.Name, p.config.Transport, p.config.Profile, p.config.CgroupParent, p.agent, p.host.Root})
	return hex.EncodeToString(sum.Sum(nil)[:20])
}

// claim makes a started sandbox of the template's pool the one of this name,
// and returns nil when none fits. On the connection its agent has spoken. The
// caller holds the name's lock.
func (p *Provider) claim(ctx context.Context, name string, spec providers.Spec) (*record, net.Conn, error) {
	if ctx.Err() != nil {
		return nil, nil, fmt.Errorf("create %s: %w", name, context.Cause(ctx))
	}
	ids, err := p.pooled(spec.Template)
	if err != nil {
		return nil, nil, err
	}
	// The lock of one that fits may be held by whoever has just made it. Free
	// ones go first, so that callers do not stand in each other's way.
	try := func(_ context.Context, name string) (*lock.Lock, error) { return p.locks.Try(name) }
	for _, take := range []locking{try, p.locks.Acquire} {
		for _, id := range ids {
			rec, conn, err := p.claimOne(ctx, take, id, name, spec)
			switch {
			case err != nil && ctx.Err() != nil:
				return nil, nil, err
			case err != nil:
				// It is in nobody's way, and a new one can be made.
				p.log.LogAttrs(ctx, slog.LevelWarn, "a sandbox of a pool could not be claimed", slog.String("pooled", id), slog.Any("error", err))
			case rec != nil:
				p.refill()
				return rec, conn, nil
			}
		}
	}
	return nil, nil, nil
}

// locking takes a lock, or returns nil where it does not wait for it.
type locking func(ctx context.Context, name string) (*lock.Lock, error)

// pooled lists the sandboxes of one template's pool, whatever their state.
func (p *Provider) pooled(template string) ([]string, error) {
	if !poolName.MatchString(template) {
		return nil, nil
	}
	entries, err := os.ReadDir(p.layout.pool())
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), pooledPrefix(template)) {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// unclaimed returns the record of a sandbox that can be claimed for a spec, or
// nil.
func (p *Provider) unclaimed(id string, spec providers.Spec) *record {
	rec, err := readRecord(p.layout.pooled(id))
	if err != nil || rec.Phase != phaseUnclaimed || rec.Fit != p.fitOf(spec, rec.Incarnation) || !rec.Init.Alive() {
		return nil
	}
	return rec
}

func (p *Provider) claimOne(ctx context.Context, take locking, id, name string, spec providers.Spec) (*record, net.Conn, error) {
	// Another caller must not miss one that fits because this one looks at it.
	if p.unclaimed(id, spec) == nil {
		return nil, nil, nil
	}
	held, err := take(ctx, id)
	if err != nil || held == nil {
		return nil, nil, err
	}
	b := p.layout.pooled(id)
	defer func() { held.Release(!exists(string(b))) }()
	rec := p.unclaimed(id, spec)
	if rec == nil {
		return nil, nil, nil
	}
	soon, cancel := context.WithTimeoutCause(ctx, answerTimeout, errNoAnswer)
	defer cancel()
	conn, err := p.proveReady(soon, b, rec)
	if err != nil {
		if ctx.Err() == nil {
			p.markDeleting(ctx, held, b, rec)
			err = errors.Join(err, p.destroy(ctx, held, b, id, rec))
		}
		return nil, nil, err
	}
	rec.Phase, rec.FromPool, rec.Fit = phaseActive, true, ""
	rec.Spec = withoutValues(spec)
	rec.CreateTime = time.Now()
	rec.LastActivity = rec.CreateTime
	if err = p.fault(ctx, "record the claim"); err == nil {
		err = rec.write(b)
	}
	if err == nil {
		err = p.fault(ctx, "move the claim")
	}
	if err == nil {
		err = os.Rename(string(b), string(p.layout.sandbox(name)))
	}
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	return rec, conn, nil
}

// answerTimeout is how long a started agent may take to answer a claim.
const answerTimeout = 5 * time.Second

var errNoAnswer = fmt.Errorf("the agent did not answer within %v: %w", answerTimeout, providers.ErrStartTimeout)

// settlePooled removes a sandbox of a pool that is not whole and that nobody is
// at work on: half made, half claimed, half deleted, or ended.
func (p *Provider) settlePooled(ctx context.Context, id string) (settled, error) {
	b := p.layout.pooled(id)
	whole := func() (*record, bool, error) {
		rec, err := readRecord(b)
		switch {
		case err == nil:
			return rec, rec.Phase == phaseUnclaimed && rec.Init.Alive(), nil
		case errors.Is(err, errCorrupt), errors.Is(err, providers.ErrNotFound):
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
