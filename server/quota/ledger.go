package quota

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/sandgate/sandgate/providers"
)

// document is what servers share by providers.Ledger: the creations under way, and
// those that others may not have seen in a listing yet.
type document struct {
	// Seq counts the changes. Lost is the greatest Added of the entries that were
	// taken out while their sandboxes existed: a server that has last read the
	// document before that must list.
	Seq     uint64                      `json:"seq"`
	Lost    uint64                      `json:"lost,omitempty"`
	Servers map[string]map[string]entry `json:"servers,omitempty"` // by server and sandbox
	Buckets map[string]*bucket          `json:"buckets,omitempty"` // of creations, by owner
}

// entry is a reservation.
type entry struct {
	Tenant    string              `json:"tenant"`
	Principal string              `json:"principal,omitempty"`
	Resources providers.Resources `json:"resources"`
	// Added is the document's Seq that has the entry first. Done is the one since
	// which a listing shows whether the sandbox exists; 0: it is being created.
	Added uint64 `json:"added"`
	Done  uint64 `json:"done,omitempty"`
	// settled is true in this server's memory from when the creation has ended.
	settled bool
	// Until is when the entry ends, whatever became of its server.
	Until time.Time `json:"until"`
}

func (e entry) owner() Owner { return Owner{e.Tenant, e.Principal} }

// decode returns an empty document for one that can't be read: its Seq is then
// smaller than every server's, so all of them list.
func decode(raw []byte) *document {
	d := &document{}
	if len(raw) == 0 || json.Unmarshal(raw, d) != nil {
		d = &document{}
	}
	d.Lost = min(d.Lost, d.Seq)
	if d.Servers == nil {
		d.Servers = make(map[string]map[string]entry)
	}
	if d.Buckets == nil {
		d.Buckets = make(map[string]*bucket)
	}
	return d
}

// drop takes an entry out.
func (d *document) drop(server, name string) {
	delete(d.Servers[server], name)
	if len(d.Servers[server]) == 0 {
		delete(d.Servers, server)
	}
}

// lose takes out an entry whose sandbox may exist. Entries from before the document was
// deleted have an Added that it has not reached: no listing could catch up with that.
func (d *document) lose(server, name string) {
	d.Lost = max(d.Lost, min(d.Servers[server][name].Added, d.Seq))
	d.drop(server, name)
}

// expire takes out entries past their time, and full buckets. A bucket from far in the
// future was written before a clock was set back: it fills from now on, not from then.
func (d *document) expire(now time.Time, perMinute func(owner string) int64) {
	for server, entries := range d.Servers {
		for name, e := range entries {
			if now.After(e.Until) {
				d.lose(server, name)
			}
		}
	}
	for owner, b := range d.Buckets {
		if b != nil && b.At.After(now.Add(maxSkew)) {
			b.At = now
		}
		if n := perMinute(owner); n == 0 || b.filled(n, now).Tokens >= float64(n) {
			delete(d.Buckets, owner)
		}
	}
}

// growth returns how many bytes an entry and the buckets of its owner add at most.
func (d *document) growth(name string, e entry) int {
	n := size(name) + size(e) + doneSize
	for _, scope := range e.owner().scopes() {
		if key := bucketKey(scope); d.Buckets[key] == nil {
			n += size(key) + bucketSize
		}
	}
	return n
}

// makeRoom takes entries out until the document has room for more bytes, and returns
// the room that it has, and those of a server that it took out. What other servers have
// not read of these they learn by a listing, so only entries of ended creations can go.
// Half of the document becomes free, so that this is seldom.
func (d *document) makeRoom(limit, more int, server string) (room int, dropped []string) {
	if room = limit - size(d); room >= more {
		return room, nil
	}
	type place struct {
		server, name string
		entry
	}
	var done []place
	for by, entries := range d.Servers {
		for name, e := range entries {
			if e.Done > 0 {
				done = append(done, place{by, name, e})
			}
		}
	}
	slices.SortFunc(done, func(a, b place) int { return cmp.Compare(a.Done, b.Done) })
	for _, p := range done {
		if room >= max(more, limit/2) {
			break
		}
		room += size(p.name) + size(p.entry)
		if d.lose(p.server, p.name); p.server == server {
			dropped = append(dropped, p.name)
		}
	}
	return room, dropped
}

// doneSize is what an entry grows at most once its creation has ended.
const doneSize = 48

// bucketSize is more than a bucket has in the document, without its key.
const bucketSize = 96

// size returns how many bytes a value has in the document, with what separates it from
// others.
func size(v any) int {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err) // of texts, numbers and times
	}
	return len(raw) + 1
}

// bucketKey is an owner's key in Buckets.
func bucketKey(o Owner) string {
	key, err := json.Marshal([]string{o.Tenant, o.Principal})
	if err != nil {
		panic(err) // of two strings
	}
	return string(key)
}

func ownerOf(key string) Owner {
	var parts [2]string
	if json.Unmarshal([]byte(key), &parts) != nil {
		return Owner{}
	}
	return Owner{parts[0], parts[1]}
}
