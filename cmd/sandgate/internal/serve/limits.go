package serve

import (
	"fmt"
	"reflect"
	"time"

	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/quota"
)

type limitsConfig struct {
	MaxMessageBytes         int           `yaml:"max_message_bytes" help:"largest message from a client, at most 16 MiB (default 16 MiB)" min:"65536" max:"16777216"`
	MaxRequestBytes         int64         `yaml:"max_request_bytes" help:"what the requests of a tenant's calls may take of this server's memory, where callers authenticate; more are rejected (default 64 MiB)" min:"33554432"`
	DefaultTimeout          time.Duration `yaml:"default_timeout" help:"timeout of a command that sets none (default none)" min:"0s"`
	MaxTimeout              time.Duration `yaml:"max_timeout" help:"longest timeout of a command (default no limit)" min:"0s"`
	MaxOutputBytes          int64         `yaml:"max_output_bytes" help:"most output of a command; more is counted and dropped (default no limit)" min:"0"`
	OutputLogBytes          int64         `yaml:"output_log_bytes" help:"output retained for each command, for Attach (default 64 MiB)" min:"0"`
	EndRetention            time.Duration `yaml:"end_retention" help:"how long the exit status and output of an ended command are kept (default 1h)" min:"0s"`
	MaxFileBytes            int64         `yaml:"max_file_bytes" help:"largest file that a call can write (default no limit)" min:"0"`
	DefaultIdleTTL          time.Duration `yaml:"default_idle_ttl" help:"idle lifetime of a sandbox that sets none (default 24h)" min:"0s"`
	DefaultTTL              time.Duration `yaml:"default_ttl" help:"lifetime from creation of a sandbox that sets none (default none)" min:"0s"`
	MaxIdleTTL              time.Duration `yaml:"max_idle_ttl" help:"longest idle lifetime; a request for more is rejected (default no limit)" min:"0s"`
	MaxTTL                  time.Duration `yaml:"max_ttl" help:"longest lifetime from creation; a request for more is rejected (default no limit)" min:"0s"`
	CreateTimeout           time.Duration `yaml:"create_timeout" help:"timeout of CreateSandbox, SuspendSandbox and ResumeSandbox (default 5m)" min:"0s"`
	MaxSandboxes            int64         `yaml:"max_sandboxes" help:"sandboxes of all tenants together (default no limit)" min:"0"`
	MaxCreations            int           `yaml:"max_creations" help:"concurrent creations; others wait, for create_timeout at most (default local: 8 per processor; elsewhere no limit)" min:"0"`
	MaxConnections          int           `yaml:"max_connections" help:"connections of authenticated callers; calls on others are rejected. A tenant holds at most a quarter of them (default 4096)" min:"0"`
	MaxUploads              int           `yaml:"max_uploads" help:"uploads at a time; more are rejected. Where callers authenticate, a tenant has at most a quarter of them (default 1536)" min:"0"`
	MaxForwards             int           `yaml:"max_forwards" help:"open connections to ports of sandboxes; more are rejected. Where callers authenticate, a tenant holds at most a quarter of them (default 2048)" min:"0"`
	MaxEgressConnections    int           `yaml:"max_egress_connections" help:"open connections of sandboxes with the network mode proxy; more are refused. Where callers authenticate, a tenant holds at most a quarter of them (default 2048)" min:"0"`
	MaxEgressBytesPerSecond int           `yaml:"max_egress_bytes_per_second" help:"bytes per second that the connections of one sandbox with the network mode proxy carry, in both directions together; more waits. At least 65536 (default no limit)" min:"0"`
}

func (l limitsConfig) server() server.Limits {
	return server.Limits{
		MaxMessageBytes: l.MaxMessageBytes, MaxRequestBytes: l.MaxRequestBytes, DefaultTimeout: l.DefaultTimeout, MaxTimeout: l.MaxTimeout, MaxOutputBytes: l.MaxOutputBytes,
		OutputLogBytes: l.OutputLogBytes, EndRetention: l.EndRetention, MaxFileBytes: l.MaxFileBytes,
		DefaultIdleTTL: l.DefaultIdleTTL, DefaultTTL: l.DefaultTTL, MaxIdleTTL: l.MaxIdleTTL, MaxTTL: l.MaxTTL,
		CreateTimeout: l.CreateTimeout, MaxCreations: l.MaxCreations, MaxConnections: l.MaxConnections, MaxUploads: l.MaxUploads, MaxForwards: l.MaxForwards,
		MaxEgressConnections: l.MaxEgressConnections, MaxEgressBytesPerSecond: l.MaxEgressBytesPerSecond,
	}
}

// quotasConfig holds the quotas of tenants and principals.
type quotasConfig struct {
	Tenant    quotaConfig      `yaml:"tenant" min:"0"`
	Principal quotaConfig      `yaml:"principal" min:"0"`
	Overrides []overrideConfig `yaml:"overrides" help:"quotas of single tenants and principals (default none)"`
}

type quotaConfig struct {
	MaxSandboxes       int64 `yaml:"max_sandboxes" help:"sandboxes, whatever their state (default no limit)"`
	MaxMemoryBytes     int64 `yaml:"max_memory_bytes" help:"memory limits of its sandboxes together (default no limit)"`
	MaxCPUMillis       int64 `yaml:"max_cpu_millis" help:"processor limits of its sandboxes together, in thousandths of a core (default no limit)"`
	MaxDiskBytes       int64 `yaml:"max_disk_bytes" help:"disks of its sandboxes together (default no limit)"`
	CreationsPerMinute int64 `yaml:"creations_per_minute" help:"new sandboxes a minute (default no limit)"`
	MaxStreams         int64 `yaml:"max_streams" help:"concurrent calls of Execute, Attach, Upload, Download, Forward and WatchSandboxes on each server (default no limit)"`
	CommandsPerMinute  int64 `yaml:"commands_per_minute" help:"commands started a minute on each server (default no limit)"`
}

type overrideConfig struct {
	Tenant    string      `yaml:"tenant" help:"tenant"`
	Principal string      `yaml:"principal" help:"principal in that tenant (default the quotas are those of the tenant as a whole)"`
	Quota     quotaConfig `yaml:"quota" help:"its quotas, with the keys of quotas.tenant; -1: no limit (default as without the override)" min:"-1"`
}

// quotas returns the quotas, each override with the values that it leaves out.
func (c quotasConfig) quotas() (quota.Config, error) {
	all := quota.Config{Tenant: quota.Limits(c.Tenant), Principal: quota.Limits(c.Principal)}
	if err := all.Check(); err != nil {
		return all, err
	}
	for i, o := range c.Overrides {
		owner := quota.Owner{Tenant: o.Tenant, Principal: o.Principal}
		if o.Tenant == "" {
			return all, fmt.Errorf("overrides[%d]: tenant is missing", i)
		}
		if _, twice := all.Overrides[owner]; twice {
			return all, fmt.Errorf("overrides[%d]: there are two for this tenant and principal", i)
		}
		base := c.Tenant
		if o.Principal != "" {
			base = c.Principal
		}
		limits, err := o.Quota.over(base)
		if err != nil {
			return all, fmt.Errorf("overrides[%d]: %w", i, err)
		}
		if all.Overrides == nil {
			all.Overrides = make(map[quota.Owner]quota.Limits)
		}
		all.Overrides[owner] = quota.Limits(limits)
	}
	return all, nil
}

// over returns the quotas with those of base where they are 0, and 0 for -1.
func (q quotaConfig) over(base quotaConfig) (quotaConfig, error) {
	to, from := reflect.ValueOf(&q).Elem(), reflect.ValueOf(base)
	for i := range to.NumField() {
		switch n := to.Field(i).Int(); {
		case n == 0:
			to.Field(i).Set(from.Field(i))
		case n == -1:
			to.Field(i).SetInt(0)
		case n < -1:
			return q, fmt.Errorf("quota.%s is negative; -1 is no limit", to.Type().Field(i).Tag.Get("yaml"))
		}
	}
	return q, nil
}
