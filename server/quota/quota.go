// Package quota bounds what tenants and principals use: sandboxes and their
// resources, counted from the substrate and exact over all servers that share it,
// and the streams and commands of one server.
package quota

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sandgate/sandgate/providers"
)

// Owner is who uses something: a tenant, one principal in it, or with the zero
// value everybody together.
type Owner struct{ Tenant, Principal string }

// Scope names the kind of owner: "server", "tenant" or "principal".
func (o Owner) Scope() string {
	switch {
	case o == Owner{}:
		return "server"
	case o.Principal == "":
		return "tenant"
	default:
		return "principal"
	}
}

// scopes returns whose quotas apply to a principal. An anonymous caller has those of
// its tenant only.
func (o Owner) scopes() []Owner {
	all := []Owner{{}, {Tenant: o.Tenant}}
	if o.Principal != "" {
		all = append(all, o)
	}
	return all
}

// Limits are the quotas of one owner; 0: no limit.
type Limits struct {
	// MaxSandboxes bounds sandboxes in any state, and the other three the sums of
	// their limits.
	MaxSandboxes                               int64
	MaxMemoryBytes, MaxCPUMillis, MaxDiskBytes int64
	// CreationsPerMinute bounds the rate of new sandboxes. An owner that was idle
	// may use the creations of one minute at once.
	CreationsPerMinute int64
	// MaxStreams bounds concurrent calls of Execute, Attach, Upload, Download and
	// Forward, and CommandsPerMinute the rate of Execute, each on this server.
	MaxStreams, CommandsPerMinute int64
}

// sandboxes reports whether a limit needs sandboxes to be counted.
func (l Limits) sandboxes() bool {
	l.MaxStreams, l.CommandsPerMinute = 0, 0
	return l != Limits{}
}

// Config holds the quotas of all owners.
type Config struct {
	// MaxSandboxes bounds the sandboxes of all tenants; 0: no limit.
	MaxSandboxes int64
	// Tenant applies to each tenant, Principal to each principal.
	Tenant, Principal Limits
	// Overrides replace them for single owners.
	Overrides map[Owner]Limits
}

// of returns an owner's quotas.
func (c *Config) of(o Owner) Limits {
	if l, ok := c.Overrides[o]; ok {
		return l
	}
	switch o.Scope() {
	case "server":
		return Limits{MaxSandboxes: c.MaxSandboxes}
	case "tenant":
		return c.Tenant
	default:
		return c.Principal
	}
}

// sandboxes reports whether any quota needs sandboxes to be counted.
func (c *Config) sandboxes() bool {
	limited := c.MaxSandboxes > 0 || c.Tenant.sandboxes() || c.Principal.sandboxes()
	for _, l := range c.Overrides {
		limited = limited || l.sandboxes()
	}
	return limited
}

// EachServer returns the names of the quotas in use that each server counts alone: the
// servers of a substrate together admit as many times as much as there are servers.
func (c *Config) EachServer() []string {
	var names []string
	for _, l := range append(slices.Collect(maps.Values(c.Overrides)), c.Tenant, c.Principal) {
		for _, q := range l.list() {
			if q.limit > 0 && (q.name == maxStreams || q.name == commandsPerMinute) {
				names = append(names, q.name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Check returns an error if a limit is negative.
func (c *Config) Check() error {
	check := func(whose string, l Limits) error {
		for _, q := range l.list() {
			if q.limit < 0 {
				return fmt.Errorf("%s: %s is negative", whose, q.name)
			}
		}
		return nil
	}
	if c.MaxSandboxes < 0 {
		return fmt.Errorf("server: max_sandboxes is negative")
	}
	if err := check("tenant", c.Tenant); err != nil {
		return err
	}
	if err := check("principal", c.Principal); err != nil {
		return err
	}
	for o, l := range c.Overrides {
		if err := check(fmt.Sprintf("override %q %q", o.Tenant, o.Principal), l); err != nil {
			return err
		}
	}
	return nil
}

// The names of quotas, as the configuration file has them.
const (
	maxSandboxes       = "max_sandboxes"
	maxMemory          = "max_memory_bytes"
	maxCPU             = "max_cpu_millis"
	maxDisk            = "max_disk_bytes"
	creationsPerMinute = "creations_per_minute"
	maxStreams         = "max_streams"
	commandsPerMinute  = "commands_per_minute"
)

type named struct {
	name  string
	limit int64
}

// list returns all quotas in the order in which they are checked and shown.
func (l Limits) list() []named {
	return []named{
		{maxSandboxes, l.MaxSandboxes}, {maxMemory, l.MaxMemoryBytes}, {maxCPU, l.MaxCPUMillis}, {maxDisk, l.MaxDiskBytes},
		{creationsPerMinute, l.CreationsPerMinute}, {maxStreams, l.MaxStreams}, {commandsPerMinute, l.CommandsPerMinute},
	}
}

// Use is what sandboxes take together.
type Use struct{ Sandboxes, MemoryBytes, CPUMillis, DiskBytes int64 }

func useOf(r providers.Resources) Use {
	return Use{1, r.MemoryBytes, int64(r.CPUMillis), r.DiskBytes}
}

func (u *Use) add(v Use, n int64) {
	u.Sandboxes += n * v.Sandboxes
	u.MemoryBytes += n * v.MemoryBytes
	u.CPUMillis += n * v.CPUMillis
	u.DiskBytes += n * v.DiskBytes
}

// of returns the part that a quota bounds, and false if it bounds no sum.
func (u Use) of(quota string) (int64, bool) {
	switch quota {
	case maxSandboxes:
		return u.Sandboxes, true
	case maxMemory:
		return u.MemoryBytes, true
	case maxCPU:
		return u.CPUMillis, true
	case maxDisk:
		return u.DiskBytes, true
	default:
		return 0, false
	}
}

// Exceeded is the error of a request beyond a quota.
type Exceeded struct {
	// Quota is the quota's name in the configuration file, such as
	// "max_sandboxes". Owner is whose it is.
	Quota string
	Owner Owner
	// Limit is the quota, Used what is in use, and Asked what the request adds. For
	// a rate, Used is the number in the last minute, about.
	Limit, Used, Asked int64
	// RetryAfter is when a rate allows the next one. 0: when something ends.
	RetryAfter time.Duration
	// Never is true if no waiting helps.
	Never bool
}

// Error implements error.
func (e *Exceeded) Error() string {
	whose := map[string]string{"server": "this server", "tenant": "this tenant", "principal": "this caller"}[e.Owner.Scope()]
	switch {
	case e.Quota == maxSandboxes:
		return fmt.Sprintf("%s may have %d sandboxes and has %d; delete some, or wait until some expire", whose, e.Limit, e.Used)
	case e.Quota == maxStreams:
		return fmt.Sprintf("%s may have %d running commands, attachments, transfers and forwarded connections on this server and has %d; end some", whose, e.Limit, e.Used)
	case e.Quota == creationsPerMinute:
		return fmt.Sprintf("%s may create %d sandboxes a minute; wait %s", whose, e.Limit, e.RetryAfter)
	case e.Quota == commandsPerMinute:
		return fmt.Sprintf("%s may start %d commands a minute on this server; wait %s", whose, e.Limit, e.RetryAfter)
	case e.Quota == MaxRequestBytes:
		return fmt.Sprintf("the messages of this tenant's running calls may take %d bytes on this server; send fewer at once, or content through Upload", e.Limit)
	case e.Quota == MaxUploads:
		return fmt.Sprintf("%s may have %d uploads at a time (limits.max_uploads); try again when one has ended, or send more files in one", whose, e.Limit)
	case e.Asked == 0:
		return fmt.Sprintf("%s has the quota %s of %d, so each of its sandboxes needs such a limit, and this one has none; set it in spec.resources", whose, e.Quota, e.Limit)
	case e.Never:
		return fmt.Sprintf("the sandbox asks for %d, and the quota %s of %s is %d; ask for less", e.Asked, e.Quota, whose, e.Limit)
	default:
		return fmt.Sprintf("the quota %s of %s is %d, its sandboxes have %d, and this one asks for %d; delete some, or ask for less",
			e.Quota, whose, e.Limit, e.Used, e.Asked)
	}
}

// fits returns an *Exceeded if another sandbox does not fit.
func (l Limits) fits(o Owner, used, more Use) error {
	for _, q := range l.list() {
		u, sum := used.of(q.name)
		if q.limit == 0 || !sum {
			continue
		}
		// A sandbox without such a limit could use any amount.
		m, _ := more.of(q.name)
		if m == 0 || m > q.limit-u {
			return &Exceeded{Quota: q.name, Owner: o, Limit: q.limit, Used: u, Asked: m, Never: m == 0 || m > q.limit}
		}
	}
	return nil
}
