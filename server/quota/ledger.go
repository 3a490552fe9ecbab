package quota

import (
	"encoding/json"
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

// expire takes out entries past their time, and full buckets.
func (d *document) expire(now time.Time, perMinute func(owner string) int64) {
	for server, entries := range d.Servers {
		for name, e := range entries {
			if now.After(e.Until) {
				d.Lost = max(d.Lost, e.Added)
				d.drop(server, name)
			}
		}
	}
	for owner, b := range d.Buckets {
		if n := perMinute(owner); n == 0 || b.filled(n, now).Tokens >= float64(n) {
			delete(d.Buckets, owner)
		}
	}
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
