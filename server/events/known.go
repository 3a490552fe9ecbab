package events

import (
	"context"
	"maps"
	"time"

	"github.com/sandgate/sandgate/providers"
)

// known is a sandbox that the journal has as existing.
type known struct {
	CreateTime  time.Time         `json:"create_time"`
	Tenant      string            `json:"tenant"`
	ID          string            `json:"id"`
	Incarnation string            `json:"incarnation,omitempty"`
	Template    string            `json:"template,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	State       providers.State   `json:"state"`
	// Expire is when it expires, as last listed, by the lifetime Lifetime.
	Expire   time.Time `json:"expire,omitzero"`
	Lifetime Reason    `json:"lifetime,omitempty"`
	// Warned is the ExpireTime of the last Expiring.
	Warned time.Time `json:"warned,omitzero"`
}

func knownOf(info providers.Info) known {
	k := known{
		CreateTime: info.CreateTime.UTC(), Tenant: info.Spec.Tenant, ID: info.Spec.ID, Incarnation: info.Incarnation,
		Template: info.Spec.Template, Labels: info.Spec.Labels, State: info.State, Expire: info.ExpireTime().UTC(),
	}
	if !info.ExpireTime().IsZero() {
		k.Lifetime = ExpiresBy(info)
	}
	return k
}

// info returns what an event of the sandbox needs.
func (k known) info(name string) providers.Info {
	return providers.Info{
		Name: name, Incarnation: k.Incarnation, State: k.State, CreateTime: k.CreateTime,
		Spec: providers.Spec{Tenant: k.Tenant, ID: k.ID, Template: k.Template, Labels: k.Labels},
	}
}

// same reports whether no event lies between two views of a name.
func (k known) same(other known) bool {
	return k.CreateTime.Equal(other.CreateTime) && k.Incarnation == other.Incarnation && k.State == other.State
}

func (k known) equal(other known) bool {
	return k.same(other) && k.Expire.Equal(other.Expire) && k.Lifetime == other.Lifetime && k.Warned.Equal(other.Warned) && maps.Equal(k.Labels, other.Labels)
}

// book is the set of known sandboxes: the journal as a whole, of which the substrate
// keeps the last events only. It is stored in parts, as checkpoints of the journal.
type book struct {
	change Change
	reader *Reader
	names  map[string]known
	parts  [parts]*part
	// maxPart is how many bytes of a part make it a split one.
	maxPart int
}

// openBook reads the checkpoints and the events since. The book must be closed.
func openBook(ctx context.Context, j *Journal, change Change) (*book, error) {
	reader, err := j.Read(ctx, "")
	if err != nil {
		return nil, err
	}
	b := &book{change: change, reader: reader, names: make(map[string]known), maxPart: maxPartBytes}
	since := reader.seq
	for i := range parts {
		if b.parts[i], err = b.load(ctx, address{part: i}, &since); err != nil {
			reader.Close()
			return nil, err
		}
	}
	// Events that a part has already change nothing: what comes after them does too.
	reader.seq = since
	b.catchUp()
	return b, nil
}

func (b *book) close() { b.reader.Close() }

// catchUp takes over the events that the journal has in memory.
func (b *book) catchUp() {
	for {
		news, _ := b.reader.poll()
		if len(news) == 0 {
			return
		}
		for _, e := range news {
			b.apply(e)
		}
	}
}

func (b *book) apply(e Event) {
	now, ok := b.names[e.Name]
	if ok && e.CreateTime.Before(now.CreateTime) {
		return // of a former sandbox of that name
	}
	switch e.Type {
	case Resync:
		// The next listing shows what the lost events changed.
	case Ended:
		if ok && now.CreateTime.Equal(e.CreateTime) {
			b.remove(e.Name)
		}
	case Created, StateChanged, Expiring:
		next := known{
			CreateTime: e.CreateTime, Tenant: e.Tenant, ID: e.SandboxID, Incarnation: e.Incarnation,
			Template: e.Template, Labels: e.Labels, State: e.State,
		}
		if ok && now.CreateTime.Equal(e.CreateTime) {
			next.Expire, next.Lifetime, next.Warned = now.Expire, now.Lifetime, now.Warned
		}
		if e.Type == Expiring {
			next.Warned = e.ExpireTime
		}
		b.set(e.Name, next)
	}
}

func (b *book) set(name string, k known) {
	if old, ok := b.names[name]; ok && old.equal(k) {
		return
	}
	b.names[name] = k
	b.partOf(name).changed = true
}

func (b *book) remove(name string) {
	delete(b.names, name)
	b.partOf(name).changed = true
}
