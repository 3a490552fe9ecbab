package quota

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/sandgate/sandgate/providers"
)

// errUnseen means that the document no longer has something that this server has not
// read: it must list.
var errUnseen = errors.New("the ledger of quotas has lost entries since it was read")

// errFull means that so many creations are under way that their reservations fill the
// document.
var errFull = fmt.Errorf("too many sandboxes are being created at the same time on this substrate; try again when some of them are ready: %w", providers.ErrExhausted)

// verdict is what one change of the document decided.
type verdict struct {
	seq     uint64
	errs    []error          // of the requests
	own     map[string]entry // new entries
	deleted []string         // that are in the document no more
	done    []string         // own entries that were dropped
}

// write decides the requests in the queue and writes what changed. The caller holds
// b.writing.
func (b *Book) write(ctx context.Context) error {
	b.mu.Lock()
	batch := append([]*request(nil), b.queue...)
	b.dirty = false // What changes from here on may not be in the document.
	b.mu.Unlock()
	var v verdict
	err := b.change(ctx, func(raw []byte) (_ []byte, err error) {
		doc := decode(raw)
		if v, err = b.decide(doc, batch); err != nil {
			return nil, err
		}
		return json.Marshal(doc)
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.dirty = true // The change may have arrived.
		return err
	}
	b.seen = v.seq
	for _, name := range v.done {
		delete(b.own, name) // It may be reserved again in v.own.
	}
	for name, e := range v.own {
		// It may have been settled, or taken out, while the change was written.
		if now, ok := b.own[name]; ok && e.settled {
			now.Done = e.Done
			b.own[name] = now
		} else if !e.settled {
			b.own[name] = e
		}
	}
	for _, name := range v.deleted {
		delete(b.deleted, name)
	}
	b.dirty = b.dirty || len(b.deleted) > 0
	for i, r := range batch {
		if r.decided = true; v.errs[i] == nil {
			b.take(r)
			if r.left {
				b.settle(r.name, "")
			}
		}
		r.err = v.errs[i]
	}
	waiting := b.queue[:0:0]
	for _, r := range b.queue {
		if !r.decided {
			waiting = append(waiting, r)
		}
	}
	b.queue = waiting
	return nil
}

// decide changes the document, and nothing else: it may be called again with
// another one. Only foreign entries are learned for good.
func (b *Book) decide(doc *document, batch []*request) (verdict, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	// First, so that an entry that expired unread is not dropped without a listing.
	now := time.Now()
	doc.expire(now, func(key string) int64 { return b.config.of(ownerOf(key)).CreationsPerMinute })
	if doc.Lost > b.seen || doc.Seq < b.seen {
		return verdict{}, errUnseen
	}
	b.learn(doc)
	doc.Seq++
	v := verdict{seq: doc.Seq, own: make(map[string]entry)}
	for name, at := range b.deleted {
		for server, entries := range doc.Servers {
			if e, ok := entries[name]; ok && server != b.server && e.Added <= at {
				doc.drop(server, name)
			}
		}
		v.deleted = append(v.deleted, name)
	}
	mine := make(map[string]entry, len(b.own)+len(batch))
	for name, e := range b.own {
		if _, kept := doc.Servers[b.server][name]; e.Done > 0 && !kept {
			v.done = append(v.done, name) // It has expired, or another server took it out.
			continue
		}
		if e.settled && e.Done == 0 {
			e.Done = doc.Seq
			v.own[name] = e
		}
		mine[name] = e
	}
	doc.Servers[b.server] = mine
	b.decideAll(doc, batch, &v, now)
	if doc.Servers[b.server] = mine; len(mine) == 0 {
		delete(doc.Servers, b.server)
	}
	return v, nil
}

// decideAll decides the requests and adds the entries of those that it admits, as far as
// the document has room.
func (b *Book) decideAll(doc *document, batch []*request, v *verdict, now time.Time) {
	mine, more := doc.Servers[b.server], make(map[Owner]*Use)
	wanted := make([]entry, len(batch))
	sizes, all := make([]int, len(batch)), 0
	for i, r := range batch {
		wanted[i] = entry{
			Tenant: r.owner.Tenant, Principal: r.owner.Principal, Resources: r.spec.Resources,
			Added: doc.Seq, Until: now.Add(b.hold),
		}
		sizes[i] = doc.growth(r.name, wanted[i])
		all += sizes[i]
	}
	room, dropped := doc.makeRoom(b.maxDocument, all, b.server)
	for _, name := range dropped {
		delete(v.own, name)
	}
	v.done = append(v.done, dropped...)
	for i, r := range batch {
		old, ok := mine[r.name]
		add := !ok || old.Done > 0
		if add && sizes[i] > room {
			v.errs = append(v.errs, errFull)
			continue
		}
		err := b.admit(doc, r, mine, more, now)
		v.errs = append(v.errs, err)
		if err == nil && add {
			mine[r.name], v.own[r.name] = wanted[i], wanted[i]
			room -= sizes[i] // The buckets count for each that shares them.
		}
	}
}

// admit returns an *Exceeded if a request is beyond a quota.
func (b *Book) admit(doc *document, r *request, mine map[string]entry, more map[Owner]*Use, now time.Time) error {
	_, reserved := mine[r.name]
	if b.names[r.name] != nil || reserved {
		return nil
	}
	u := useOf(r.spec.Resources)
	scopes := r.owner.scopes()
	for _, scope := range scopes {
		if r.exists {
			break
		}
		var used Use
		for _, part := range []*Use{b.use[scope], more[scope]} {
			if part != nil {
				used.add(*part, 1)
			}
		}
		l := b.config.of(scope)
		if err := l.fits(scope, used, u); err != nil {
			return err
		}
		if n := l.CreationsPerMinute; n > 0 {
			if bucket := doc.Buckets[bucketKey(scope)].filled(n, now); bucket.Tokens < 1 {
				return bucket.exceeded(creationsPerMinute, scope, n)
			}
		}
	}
	for _, scope := range scopes {
		if more[scope] == nil {
			more[scope] = &Use{}
		}
		more[scope].add(u, 1)
		if n := b.config.of(scope).CreationsPerMinute; n > 0 && !r.exists {
			bucket := doc.Buckets[bucketKey(scope)].filled(n, now)
			bucket.Tokens--
			doc.Buckets[bucketKey(scope)] = &bucket
		}
	}
	return nil
}

// learn counts what other servers create. It needs b.mu.
func (b *Book) learn(doc *document) {
	now := time.Now()
	for server, entries := range doc.Servers {
		for name, e := range entries {
			if server == b.server || b.names[name] != nil || now.After(e.Until) || e.Done > 0 && e.Done <= b.truth {
				continue
			}
			if at, ok := b.deleted[name]; ok && e.Added <= at {
				continue
			}
			b.count(name, e.owner(), useOf(e.Resources)).foreign = true
			b.touch(name)
		}
	}
}
