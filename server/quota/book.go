package quota

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/limit"
)

// Book counts sandboxes, so that the server can reject a creation without listing
// them all.
//
// Each creation is first written to a document that all servers on the substrate
// share, and counts from then on for all of them. So concurrent creations, of any
// servers, never exceed a quota together. What others delete is learned by listing,
// once a minute and before a creation is rejected.
type Book struct {
	provider providers.Provider
	change   func(ctx context.Context, change func([]byte) ([]byte, error)) error
	// server is this server's key in the document.
	server string
	// hold is how long a reservation counts if this server dies.
	hold time.Duration
	// maxDocument bounds the document, in bytes.
	maxDocument int

	// listing is held during a listing, writing while the document is changed.
	listing, writing limit.Slots

	mu     sync.Mutex
	config *Config
	names  map[string]*counted
	use    map[Owner]*Use
	listed time.Time     // when the last listing ended; zero before the first
	took   time.Duration // how long it took
	// changed are the names that changed during a listing, whose result is older.
	// Nil: no listing runs.
	changed map[string]bool
	// seen is the document's Seq when it was last read, or 0 before a listing.
	// truth is the one when the last listing began: the listing shows what became of
	// entries that were done by then.
	seen, truth uint64
	// own are this server's entries of the document.
	own map[string]entry
	// deleted are sandboxes that this server deleted, with seen at that time. Older
	// entries of other servers can go.
	deleted map[string]uint64
	queue   []*request
	dirty   bool // own or deleted differ from the document
}

// counted is one name in use.
type counted struct {
	owner Owner
	use   Use
	// incarnation is empty if the sandbox may not exist yet.
	incarnation string
	pending     int  // creations under way, of this server
	foreign     bool // it is known from another server's entry only
}

// request is a creation that waits for its reservation.
type request struct {
	name    string
	owner   Owner
	spec    providers.Spec
	exists  bool // it may exceed the quotas
	decided bool
	left    bool // its caller has gone
	err     error
}

const (
	recountInterval = time.Minute
	// recountShare keeps listings before rejections, which callers can cause, to
	// a small part of the time.
	recountShare = 10
	recountPause = time.Second
	// flushInterval is how soon the document shows what became of a creation.
	flushInterval = time.Second
	// keepDone is how long the entry of a new sandbox stays in the document, so
	// that other servers need not list.
	keepDone = 30 * time.Second
	// maxDocument is less than the 1 MiB of a ConfigMap.
	maxDocument = 896 << 10
	// documentName is the name of the shared document.
	documentName = "quotas"
	pageSize     = 500
)

// NewBook returns a Book that has counted nothing yet. createTime bounds a creation.
func NewBook(p providers.Provider, config Config, createTime time.Duration) *Book {
	b := &Book{
		provider: p, server: rand.Text(), hold: createTime + time.Minute, maxDocument: maxDocument, config: &config,
		listing: limit.New(1), writing: limit.New(1),
		names: make(map[string]*counted), use: make(map[Owner]*Use), own: make(map[string]entry), deleted: make(map[string]uint64),
	}
	if l, ok := p.(providers.Ledger); ok {
		b.change = func(ctx context.Context, change func([]byte) ([]byte, error)) error {
			return l.ChangeLedger(ctx, documentName, change)
		}
		return b
	}
	var document []byte // under writing
	b.change = func(_ context.Context, change func([]byte) ([]byte, error)) error {
		now, err := change(document)
		if err == nil && now != nil {
			document = now
		}
		return err
	}
	return b
}

// Configure replaces the quotas. Sandboxes beyond new ones stay.
func (b *Book) Configure(config Config) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.config.sandboxes() {
		b.listed, b.seen = time.Time{}, 0 // Nothing was counted until now.
	}
	b.config = &config
}

// Counts reports whether there are quotas for which sandboxes are counted.
func (b *Book) Counts() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.config.sandboxes()
}

// Reserve counts a sandbox before its creation, unless it exists. The error is an
// *Exceeded beyond a quota. The reservation must be settled.
func (b *Book) Reserve(ctx context.Context, name string, spec providers.Spec) error {
	r := request{name: name, owner: Owner{spec.Tenant, spec.Principal}, spec: spec}
	if !b.Counts() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.take(&r)
		return nil
	}
	if err := b.list(ctx, false); err != nil {
		return err
	}
	// It may have been deleted elsewhere, and the creation be one in fact.
	if b.mayBeGone(name) {
		if _, err := b.provider.Get(ctx, name); errors.Is(err, providers.ErrNotFound) {
			b.gone(name)
		} else if err != nil {
			return err
		}
	}
	err := b.reserve(ctx, r)
	var beyond *Exceeded
	if !errors.As(err, &beyond) {
		return err
	}
	// The sandbox may have been created elsewhere, or others deleted.
	info, failed := b.provider.Get(ctx, name)
	switch {
	case failed == nil && info.Spec.Tenant == spec.Tenant:
		r.exists = true
		return b.reserve(ctx, r)
	case failed != nil && !errors.Is(failed, providers.ErrNotFound):
		return failed
	case beyond.Never || beyond.RetryAfter > 0:
		return err
	}
	if err := b.list(ctx, true); err != nil {
		return err
	}
	return b.reserve(ctx, r)
}

// reserve has one of the concurrent calls write the reservations of all.
func (b *Book) reserve(ctx context.Context, r request) error {
	for {
		b.mu.Lock()
		b.queue = append(b.queue, &r)
		seen := b.seen
		b.mu.Unlock()
		err := b.writing.Acquire(ctx)
		if err == nil {
			if !b.isDecided(&r) {
				err = b.write(ctx)
			}
			b.writing.Release()
		}
		if b.withdraw(&r) {
			return r.err
		}
		if errors.Is(err, errUnseen) {
			err = b.listUnseen(ctx, seen)
		}
		if err != nil {
			return b.leave(&r, err)
		}
	}
}

// mayBeGone reports whether a name is counted and no creation of this server holds
// it.
func (b *Book) mayBeGone(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.names[name]
	return n != nil && n.pending == 0
}

// gone stops counting a sandbox that does not exist.
func (b *Book) gone(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := b.names[name]; n != nil && n.pending == 0 {
		b.touch(name)
		b.remove(name)
		delete(b.own, name)
	}
}

func (b *Book) isDecided(r *request) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return r.decided
}

// withdraw takes a request out of the queue, and reports whether it was decided
// before.
func (b *Book) withdraw(r *request) (decided bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, q := range b.queue {
		if q == r {
			b.queue = append(b.queue[:i:i], b.queue[i+1:]...)
			break
		}
	}
	return r.decided
}

// leave gives a request up, which another call may be writing. It returns err, or the
// result if there is one.
func (b *Book) leave(r *request, err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.decided {
		return r.err
	}
	r.left = true
	return err
}

// Settle ends a reservation with the incarnation that exists now, or "" for none.
func (b *Book) Settle(name, incarnation string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settle(name, incarnation)
}

// settle needs b.mu.
func (b *Book) settle(name, incarnation string) {
	b.touch(name)
	n := b.names[name]
	if n == nil {
		return
	}
	n.pending--
	if incarnation != "" {
		n.incarnation, n.foreign = incarnation, false
	}
	if n.pending > 0 {
		return
	}
	if !b.config.sandboxes() || n.incarnation == "" && !n.foreign {
		b.remove(name)
	}
	if e, ok := b.own[name]; ok {
		b.dirty = true
		if n.incarnation == "" {
			delete(b.own, name)
		} else if !e.settled {
			e.settled, e.Until = true, time.Now().Add(keepDone)
			b.own[name] = e
		}
	}
}

// Forget stops counting a sandbox that was deleted.
func (b *Book) Forget(name, incarnation string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.names[name]
	if n == nil || n.incarnation != incarnation && n.incarnation != unknown && !n.foreign {
		return
	}
	b.touch(name)
	n.incarnation, n.foreign = "", false
	b.deleted[name], b.dirty = b.seen, true
	if n.pending <= 0 {
		delete(b.own, name)
		b.remove(name)
	}
}

// take counts a reservation. It, count, remove and touch need b.mu.
func (b *Book) take(r *request) {
	n := b.names[r.name]
	if n == nil {
		n = b.count(r.name, r.owner, useOf(r.spec.Resources))
	}
	n.pending++
	b.touch(r.name)
}

func (b *Book) count(name string, o Owner, u Use) *counted {
	n := &counted{owner: o, use: u}
	b.names[name] = n
	for _, scope := range o.scopes() {
		if b.use[scope] == nil {
			b.use[scope] = &Use{}
		}
		b.use[scope].add(u, 1)
	}
	return n
}

func (b *Book) remove(name string) {
	n := b.names[name]
	delete(b.names, name)
	for _, scope := range n.owner.scopes() {
		if b.use[scope].add(n.use, -1); b.use[scope].Sandboxes == 0 {
			delete(b.use, scope)
		}
	}
}

func (b *Book) touch(name string) {
	if b.changed != nil {
		b.changed[name] = true
	}
}
