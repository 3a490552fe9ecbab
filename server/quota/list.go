package quota

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/sandgate/sandgate/providers"
)

// unknown is the incarnation of an existing sandbox that has none yet.
const unknown = "unknown"

// flushTries bounds how often Flush writes again because it had to list first.
const flushTries = 3

// Run counts what other servers delete, and writes what became of creations, until
// ctx ends.
func (b *Book) Run(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(flushInterval)
	defer tick.Stop()
	for counted := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		b.Flush(ctx, log)
		if !b.Counts() || time.Since(counted) < recountInterval {
			continue
		}
		counted = time.Now()
		if err := b.list(ctx, true); err != nil && ctx.Err() == nil {
			log.WarnContext(ctx, "sandboxes could not be counted", "error", err)
		}
	}
}

// Flush writes what became of this server's creations, for other servers.
func (b *Book) Flush(ctx context.Context, log *slog.Logger) {
	var err error
	for range flushTries { // A server that stops has no further tick.
		b.mu.Lock()
		dirty, seen := b.dirty, b.seen
		b.mu.Unlock()
		if !dirty || b.writing.Acquire(ctx) != nil {
			return
		}
		err = b.write(ctx)
		b.writing.Release()
		if !errors.Is(err, errUnseen) {
			break
		}
		if err = b.listUnseen(ctx, seen); err != nil {
			break
		}
	}
	if err != nil && ctx.Err() == nil {
		log.WarnContext(ctx, "the ledger of quotas could not be written", "error", err)
	}
}

// list counts the provider's sandboxes. Unless fresh is true, one listing in
// the server's life is enough.
func (b *Book) list(ctx context.Context, fresh bool) error {
	return b.listUnless(ctx, func() bool {
		pause := max(recountPause, recountShare*b.took)
		return !b.listed.IsZero() && (!fresh || time.Since(b.listed) < pause)
	})
}

// listUnseen lists, unless that was done since seen was.
func (b *Book) listUnseen(ctx context.Context, seen uint64) error {
	return b.listUnless(ctx, func() bool { return b.seen != seen })
}

// listUnless calls enough with b.mu held.
func (b *Book) listUnless(ctx context.Context, enough func() bool) error {
	locked := func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return enough()
	}
	if locked() {
		return nil
	}
	if err := b.listing.Acquire(ctx); err != nil {
		return err
	}
	defer b.listing.Release()
	if locked() {
		return nil
	}
	return b.recount(ctx)
}

// recount lists. The caller holds b.listing.
func (b *Book) recount(ctx context.Context) error {
	began := time.Now()
	doc, seen, err := b.read(ctx)
	if err != nil {
		return err
	}
	defer func() {
		b.mu.Lock()
		b.changed = nil
		b.mu.Unlock()
	}()
	found := make(map[string]providers.Info)
	for q := (providers.Query{Limit: pageSize}); ; {
		page, err := b.provider.List(ctx, q)
		if err != nil {
			return err
		}
		for _, info := range page.Sandboxes {
			found[info.Name] = info
		}
		if q.Token = page.Next; q.Token == "" {
			break
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	elsewhere := doc.pending(b.server)
	for name, n := range b.names {
		if _, ok := found[name]; !ok && n.pending == 0 && !b.changed[name] && !elsewhere[name] {
			b.remove(name)
		}
	}
	for name, info := range found {
		n := b.names[name]
		if b.changed[name] || n != nil && n.pending > 0 {
			continue
		}
		if n == nil {
			n = b.count(name, Owner{info.Spec.Tenant, info.Spec.Principal}, useOf(info.Spec.Resources))
		}
		if n.foreign, n.incarnation = false, info.Incarnation; n.incarnation == "" {
			n.incarnation = unknown
		}
	}
	b.listed, b.took, b.truth = time.Now(), time.Since(began), doc.Seq
	if b.seen == seen {
		b.seen = doc.Seq
	}
	return nil
}

// read returns the document as it is before a listing, and b.seen at that time. It
// begins to note what changes.
func (b *Book) read(ctx context.Context) (doc *document, seen uint64, err error) {
	if doc, err = b.peek(ctx); err != nil {
		return nil, 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changed = make(map[string]bool)
	return doc, b.seen, nil
}

// pending returns the names that other servers create.
func (d *document) pending(server string) map[string]bool {
	names := make(map[string]bool)
	now := time.Now()
	for by, entries := range d.Servers {
		for name, e := range entries {
			if by != server && e.Done == 0 && now.Before(e.Until) {
				names[name] = true
			}
		}
	}
	return names
}

// Status is one quota with its use.
type Status struct {
	// Owner is whose quota it is: the tenant's or the principal's.
	Owner Owner
	// Quota is its name in the configuration file.
	Quota string
	// Limit is the quota, and Used what is in use; -1: it can't be counted now.
	Limit, Used int64
}

// Status returns the quotas of a tenant and of a principal in it. What other servers
// deleted may still count for a minute. The error is why a use is unknown.
func (b *Book) Status(ctx context.Context, o Owner, streams *Streams) ([]Status, error) {
	var doc *document
	var err error
	if b.Counts() {
		if err = b.list(ctx, false); err == nil {
			doc, err = b.peek(ctx)
		}
	}
	now := time.Now()
	var all []Status
	for _, scope := range o.scopes()[1:] {
		b.mu.Lock()
		limits, use := b.config.of(scope), Use{}
		if u := b.use[scope]; u != nil {
			use = *u
		}
		b.mu.Unlock()
		for _, q := range limits.list() {
			if q.limit == 0 {
				continue
			}
			s := Status{Owner: scope, Quota: q.name, Limit: q.limit, Used: -1}
			used, sum := use.of(q.name)
			switch {
			case q.name == maxStreams, q.name == commandsPerMinute:
				s.Used = streams.used(scope, q.name)
			case err != nil:
			case sum:
				s.Used = used
			default:
				s.Used = q.limit - int64(doc.Buckets[bucketKey(scope)].filled(q.limit, now).Tokens)
			}
			all = append(all, s)
		}
	}
	return all, err
}

// peek reads the document, and counts what other servers create.
func (b *Book) peek(ctx context.Context) (doc *document, err error) {
	if err := b.writing.Acquire(ctx); err != nil {
		return nil, err
	}
	defer b.writing.Release()
	err = b.change(ctx, func(raw []byte) ([]byte, error) {
		doc = decode(raw)
		return nil, nil
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		b.learn(doc)
	}
	return doc, err
}
