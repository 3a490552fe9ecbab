package quota

import (
	"maps"
	"slices"
	"strings"
)

// Used returns the quotas of the server as a whole and of these tenants, as far as
// they can be known without a listing: all but creations_per_minute. A Used of -1 means
// that sandboxes were not counted yet.
func (b *Book) Used(tenants []string, streams *Streams) []Status {
	b.mu.Lock()
	config, counted := b.config, !b.listed.IsZero()
	uses := make(map[Owner]Use, len(tenants)+1)
	owners := []Owner{{}}
	for _, t := range tenants {
		owners = append(owners, Owner{Tenant: t})
	}
	for _, o := range owners {
		if u := b.use[o]; u != nil {
			uses[o] = *u
		}
	}
	b.mu.Unlock()
	var all []Status
	for _, o := range owners {
		for _, q := range config.of(o).list() {
			if q.limit == 0 || q.name == creationsPerMinute {
				continue
			}
			s := Status{Owner: o, Quota: q.name, Limit: q.limit, Used: -1}
			if used, sum := uses[o].of(q.name); !sum {
				s.Used = streams.used(o, q.name)
			} else if counted {
				s.Used = used
			}
			all = append(all, s)
		}
	}
	return all
}

// Tenants returns the tenants that have sandboxes or streams, in order.
func (b *Book) Tenants(streams *Streams) []string {
	seen := make(map[string]bool)
	b.mu.Lock()
	for o := range b.use {
		seen[o.Tenant] = true
	}
	b.mu.Unlock()
	streams.mu.Lock()
	for o := range streams.running {
		seen[o.Tenant] = true
	}
	for o := range streams.rates {
		seen[o.Tenant] = true
	}
	streams.mu.Unlock()
	delete(seen, "")
	return slices.SortedFunc(maps.Keys(seen), strings.Compare)
}
