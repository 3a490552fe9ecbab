package admission

import "time"

// presentTime is how long a tenant counts as present after its last call.
const presentTime = time.Second

// presence knows which tenants have calls running, and when the last one ended.
type presence struct {
	running map[string]int // calls by tenant
	// latest is the tenant whose call ended last, at ended; before is when the last call
	// of any other tenant ended.
	latest        string
	ended, before time.Time
}

func (p *presence) begin(tenant string) { p.running[tenant]++ }

func (p *presence) end(tenant string, now time.Time) {
	if p.running[tenant]--; p.running[tenant] == 0 {
		delete(p.running, tenant)
	}
	if p.latest != tenant {
		p.latest, p.before = tenant, p.ended
	}
	p.ended = now
}

// others reports whether a tenant other than this one has a call running, or had one
// within presentTime.
func (p *presence) others(tenant string, now time.Time) bool {
	own := 0
	if p.running[tenant] > 0 {
		own = 1
	}
	ended := p.ended
	if p.latest == tenant {
		ended = p.before
	}
	return len(p.running) > own || now.Sub(ended) < presentTime
}
