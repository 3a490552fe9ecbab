package server

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/policy"
)

// Config is what a Server is made from. Only Provider must be set.
type Config struct {
	// Provider is where sandboxes live. The server does not close it.
	Provider providers.Provider
	// Version is the server's, "MAJOR.MINOR.PATCH". Default: "dev".
	Version string
	// Templates that requests may name. Default: policy.DefaultTemplate alone.
	Templates []policy.Template
	// Limits that requests are held to.
	Limits Limits
	// Access is a policy for every file call and command of every sandbox.
	Access *sandboxv1.AccessPolicy
	// Authenticator finds out who calls. Nil: everybody is the tenant
	// "default".
	Authenticator authn.Authenticator
	// TLS secures TCP listeners. Nil: no TLS.
	TLS *tls.Config
	// Insecure allows listening beyond loopback without TLS and authentication.
	Insecure bool
	// Announce, where set, is called with the address once Serve accepts it and
	// is about to take connections.
	Announce func(net.Addr)
	// RequireLimits refuses to serve where the provider does not enforce
	// memory, cpu, processes, disk and network.
	RequireLimits bool
	// SpecSecret salts the hashes of environment values in addition to tenant
	// and id. All replicas must have the same one.
	SpecSecret []byte
	// Logger takes what operators should know. Default: slog.Default().
	Logger *slog.Logger
	// Audit takes records of each call's start and end. Nil: none.
	Audit AuditSink
	// AuditRequired refuses calls whose start can't be recorded.
	AuditRequired bool
	// AuditCommandText keeps the text of commands in audit records, up to 8 KiB
	// of each, where a hash stands by default.
	AuditCommandText bool
	// Timing holds intervals that only tests and odd substrates change.
	Timing Timing

	// protocolMinor is the version of the agent protocol. Default: that of package
	// agentconn.
	protocolMinor int32
	// readClock, where set, stands for the machine's clocks.
	readClock func() (wall time.Time, mono time.Duration)
	// random returns a number from 0 to n-1. Default: rand.IntN.
	random func(n int) int
}

// Limits are bounds and defaults. Zero values mean the stated default.
type Limits struct {
	// MaxMessageBytes is the largest message from a client. Default: 16 MiB.
	MaxMessageBytes int
	// DefaultTimeout is that of a command that states none; 0: none.
	DefaultTimeout time.Duration
	// MaxTimeout bounds a command's timeout; 0: no bound.
	MaxTimeout time.Duration
	// MaxOutputBytes bounds a command's output; 0: no bound.
	MaxOutputBytes int64
	// OutputLogBytes is kept per command for Attach. Default: 64 MiB.
	OutputLogBytes int64
	// EndRetention is how long the end of a command is kept. Default: 1 h.
	EndRetention time.Duration
	// MaxFileBytes is the largest file that may be written; 0: no bound.
	MaxFileBytes int64
	// DefaultIdleTTL is that of a sandbox that states none. Default: 24 h.
	DefaultIdleTTL time.Duration
	// DefaultTTL is that of a sandbox that states none; 0: none.
	DefaultTTL time.Duration
	// MaxIdleTTL and MaxTTL bound lifetimes; a request beyond is refused, also
	// one for no end. 0: no bound.
	MaxIdleTTL, MaxTTL time.Duration
	// CreateTimeout bounds CreateSandbox, SuspendSandbox and ResumeSandbox.
	// Default: 5 min.
	CreateTimeout time.Duration
	// MaxSandboxes bounds the sandboxes of all tenants, and
	// MaxSandboxesPerTenant those of each; 0: no bound.
	MaxSandboxes, MaxSandboxesPerTenant int
	// MaxCreations bounds the creations in progress; others wait. With an
	// Authenticator, each tenant holds at most a quarter of them, and at least
	// one. Default: the number with which the provider is fastest.
	MaxCreations int
}

// Timing holds the server's own intervals. Zero values mean the stated default.
type Timing struct {
	// ReapInterval is how often expired sandboxes are looked for. Default: 15 s;
	// more than 30 s would break the promise of at most a minute.
	ReapInterval time.Duration
	// SlowReader is how long a reader that can be dropped may take nothing.
	// Default: 60 s.
	SlowReader time.Duration
	// Reattach is how long a broken connection to an agent is tried to be
	// mended. Default: 30 s.
	Reattach time.Duration
	// TunnelIdle is when an unused connection to an agent is closed. Default:
	// 10 min.
	TunnelIdle time.Duration
	// Hello bounds the first exchange with an agent. Default: 10 s.
	Hello time.Duration
	// Silence is how long a client's connection may be silent before it is asked
	// for a sign of life. Default: 30 s; at least 1 s.
	Silence time.Duration
	// SignOfLife is how long that may take; the connection is closed then and
	// its calls end. Default: 20 s.
	SignOfLife time.Duration
	// Recheck is how often the credentials of running calls are checked again.
	// Default: 2 s.
	Recheck time.Duration
	// Probe is how often the provider is looked at for health checks. Default:
	// 10 s.
	Probe time.Duration
	// LameDuck is how long Shutdown lets the server serve as before, not ready
	// to health checks. Default: 0.
	LameDuck time.Duration
	// ConnectionAge is when a client is asked to connect anew; its running calls
	// go on. 0: never.
	ConnectionAge time.Duration
	// Drain is how long streams may go on after that. Default: 1 s.
	Drain time.Duration
}

// Defaults that GetServerInfo shows.
const (
	defaultMaxMessageBytes = 16 << 20
	defaultOutputLogBytes  = 64 << 20
	defaultTenant          = "default"
)

func (c Config) withDefaults() (Config, error) {
	if c.Provider == nil {
		return c, errors.New("server: Config.Provider is not set")
	}
	setDefault(&c.Version, "dev")
	setDefault(&c.protocolMinor, agentconn.ProtocolMinor)
	setDefault(&c.Logger, slog.Default())
	setDefault(&c.Limits.MaxMessageBytes, defaultMaxMessageBytes)
	setDefault(&c.Limits.OutputLogBytes, defaultOutputLogBytes)
	setDefault(&c.Limits.EndRetention, time.Hour)
	setDefault(&c.Limits.DefaultIdleTTL, 24*time.Hour)
	setDefault(&c.Limits.CreateTimeout, 5*time.Minute)
	setDefault(&c.Timing.ReapInterval, 15*time.Second)
	setDefault(&c.Timing.SlowReader, time.Minute)
	setDefault(&c.Timing.Reattach, 30*time.Second)
	setDefault(&c.Timing.TunnelIdle, 10*time.Minute)
	setDefault(&c.Timing.Hello, 10*time.Second)
	setDefault(&c.Timing.Silence, 30*time.Second)
	setDefault(&c.Timing.SignOfLife, 20*time.Second)
	setDefault(&c.Timing.Recheck, 2*time.Second)
	setDefault(&c.Timing.Probe, 10*time.Second)
	setDefault(&c.Timing.Drain, time.Second)
	if c.random == nil {
		c.random = rand.IntN
	}
	if c.Audit == nil {
		c.Audit = noAudit{}
	}
	if len(c.Templates) == 0 {
		c.Templates = []policy.Template{policy.DefaultTemplate()}
	}
	if err := c.Limits.check(); err != nil {
		return c, err
	}
	if v := policy.CheckAccess("access", c.Access); len(v) > 0 {
		return c, fmt.Errorf("server: Config.Access: %w", v.Err())
	}
	return c, nil
}

func (l Limits) check() error {
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"DefaultTimeout", l.DefaultTimeout}, {"MaxTimeout", l.MaxTimeout}, {"EndRetention", l.EndRetention},
		{"DefaultIdleTTL", l.DefaultIdleTTL}, {"DefaultTTL", l.DefaultTTL}, {"MaxIdleTTL", l.MaxIdleTTL},
		{"MaxTTL", l.MaxTTL}, {"CreateTimeout", l.CreateTimeout},
	} {
		if d.value < 0 {
			return fmt.Errorf("server: Limits.%s is negative", d.name)
		}
	}
	if l.MaxMessageBytes < 64<<10 || l.MaxMessageBytes > 1<<30 {
		return fmt.Errorf("server: Limits.MaxMessageBytes must lie between 64 KiB and 1 GiB")
	}
	if l.MaxSandboxes < 0 || l.MaxSandboxesPerTenant < 0 || l.MaxCreations < 0 {
		return errors.New("server: a number of sandboxes or creations is negative")
	}
	if l.MaxOutputBytes < 0 || l.OutputLogBytes < 0 || l.MaxFileBytes < 0 {
		return errors.New("server: a limit in bytes is negative")
	}
	return nil
}

// forAgent is what goes with every call.
func (l Limits) forAgent() *agentv1.Limits {
	a := &agentv1.Limits{
		MaxOutputBytes: l.MaxOutputBytes, OutputLogBytes: l.OutputLogBytes, MaxFileBytes: l.MaxFileBytes,
		EndRetention: durationpb.New(l.EndRetention),
	}
	if l.DefaultTimeout > 0 {
		a.DefaultTimeout = durationpb.New(l.DefaultTimeout)
	}
	if l.MaxTimeout > 0 {
		a.MaxTimeout = durationpb.New(l.MaxTimeout)
	}
	return a
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
