package server

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandgate/sandgate/agent/protocol"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/audit"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/egress"
	"github.com/sandgate/sandgate/server/policy"
	"github.com/sandgate/sandgate/server/preview"
	"github.com/sandgate/sandgate/server/quota"
	"github.com/sandgate/sandgate/server/secret"
	"github.com/sandgate/sandgate/server/webhook"
)

// Config configures a Server. Only Provider must be set.
type Config struct {
	// Provider manages the sandboxes. The server does not close it.
	Provider providers.Provider
	// Version is the server's, "MAJOR.MINOR.PATCH". Default: "dev".
	Version string
	// Templates that requests may name. Default: policy.DefaultTemplate alone.
	Templates []policy.Template
	// Limits bound requests.
	Limits Limits
	// Quotas bound what tenants and principals use. Default: none.
	Quotas quota.Config
	// EgressGroups are named lists of rules for the network mode PROXY.
	EgressGroups map[string][]*sandboxv1.EgressRule
	// EgressAnyPublic lets requests allow every public destination where their
	// template has no rules. Set it only if callers may use the machine's network.
	EgressAnyPublic bool
	// Secrets are what rules can put into requests. Nil: none.
	Secrets *secret.Store
	// Preview creates URLs of ports and files, for which ServePreview takes requests.
	// Nil: CreateSandboxUrl is not supported.
	Preview *preview.URLs
	// PreviewTLS secures the listeners of ServePreview. Nil: browsers reach them through
	// a proxy that ends TLS, or on this machine.
	PreviewTLS *tls.Config
	// Roots are the authorities that verify destinations whose TLS the server ends.
	// Nil: the machine's.
	Roots *x509.CertPool
	// Resolver resolves the names that sandboxes with the network mode PROXY connect
	// to. Nil: the machine's resolver.
	Resolver egress.Resolver
	// Access is a policy for every file call and command of every sandbox.
	Access *sandboxv1.AccessPolicy
	// Authenticator authenticates callers. Nil: every caller is anonymous, in the
	// tenant "default".
	Authenticator authn.Authenticator
	// Revocations are those that the Authenticator heeds, for the metrics. Nil: none.
	Revocations *authn.Revocations
	// TLS secures TCP listeners. Nil: no TLS.
	TLS *tls.Config
	// Webhooks are the receivers of events. Default: none.
	Webhooks []webhook.Endpoint
	// Insecure allows listening beyond loopback without TLS and authentication.
	Insecure bool
	// Announce, if set, is called with the address once Serve accepts it and is
	// about to take connections.
	Announce func(net.Addr)
	// RequireLimits makes New fail if the provider does not enforce memory, cpu,
	// processes, disk and network.
	RequireLimits bool
	// SpecSecret salts the hashes of environment values in addition to tenant and
	// id, and the certificate authorities of sandboxes are derived from it. All
	// replicas must have the same one, of at least 16 bytes.
	SpecSecret []byte
	// Tracer makes the spans of calls and commands. Nil: none; a caller's trace
	// context still reaches its commands.
	Tracer trace.TracerProvider
	// Logger receives what operators should see. Default: slog.Default().
	Logger *slog.Logger
	// Audit stores records of each call's start and end. Nil: none.
	Audit audit.Sink
	// AuditRequired rejects calls whose start can't be recorded.
	AuditRequired bool
	// AuditCommandText adds the text of commands to audit records, up to 8 KiB of
	// each. By default they have its hash only.
	AuditCommandText bool
	// Timing holds intervals that only tests and unusual substrates change.
	Timing Timing

	// protocolMinor is the version of the agent protocol. Default: that of package
	// agentconn.
	protocolMinor int32
	// watchHeartbeat is when a watch without events gets a cursor. Default: 30 s.
	watchHeartbeat time.Duration
	// readClock, if set, replaces the machine's clocks.
	readClock func() (wall time.Time, mono time.Duration)
	// random returns a number from 0 to n-1. Default: rand.IntN.
	random func(n int) int
}

// Limits are bounds and defaults. Zero values mean the stated default.
type Limits struct {
	// MaxMessageBytes is the largest message from a client, at most 16 MiB, which is
	// the default.
	MaxMessageBytes int
	// MaxRequestBytes bounds, with an Authenticator, what the requests of one tenant's
	// calls take of this server's memory: those that arrive, and those of unary calls
	// that run. At least 32 MiB. Default: 64 MiB.
	MaxRequestBytes int64
	// DefaultTimeout is that of a command that states none; 0: none.
	DefaultTimeout time.Duration
	// MaxTimeout bounds a command's timeout; 0: no bound.
	MaxTimeout time.Duration
	// MaxOutputBytes bounds a command's output; 0: no bound.
	MaxOutputBytes int64
	// OutputLogBytes is the retained output per command. Default: 64 MiB.
	OutputLogBytes int64
	// EndRetention is how long an ended command is kept. Default: 1 h.
	EndRetention time.Duration
	// MaxFileBytes is the largest file that may be written; 0: no bound.
	MaxFileBytes int64
	// DefaultIdleTTL is that of a sandbox that states none. Default: 24 h.
	DefaultIdleTTL time.Duration
	// DefaultTTL is that of a sandbox that states none; 0: none.
	DefaultTTL time.Duration
	// MaxIdleTTL and MaxTTL bound lifetimes. A request for a longer one, or for
	// no end, is rejected. 0: no bound.
	MaxIdleTTL, MaxTTL time.Duration
	// CreateTimeout bounds CreateSandbox, SuspendSandbox and ResumeSandbox.
	// Default: 5 min.
	CreateTimeout time.Duration
	// MaxCreations bounds the creations in progress; others wait. With an
	// Authenticator, each tenant holds at most a quarter of them, and at least
	// one. If the provider states how many it is fastest with, those of a tenant that
	// are less than a second old are at most a sixteenth, and at least one, while
	// other tenants have calls. Default: the number with which the provider is fastest.
	MaxCreations int
	// MaxConnections bounds the connections of authenticated callers; calls on others are
	// rejected. A tenant holds at most a quarter of them. Without an Authenticator
	// nothing bounds connections. Default: 4096.
	MaxConnections int
	// MaxUploads bounds the Uploads at a time; others are rejected. With an Authenticator,
	// each tenant holds at most a quarter of them, and at least one. One whose sandbox
	// takes nothing holds 1.25 MiB of this server's memory. Default: 1 536.
	MaxUploads int
	// MaxForwards bounds the open Forwards; others are rejected. With an
	// Authenticator, each tenant holds at most a quarter of them, and at least one.
	// One whose receivers read nothing holds 3.25 MiB of this server's memory.
	// Default: 2 048.
	MaxForwards int
	// MaxEgressConnections bounds the open connections of sandboxes with the network
	// mode PROXY; others are refused. With an Authenticator, each tenant holds at most
	// a quarter of them, and at least one. Default: 2 048.
	MaxEgressConnections int
	// MaxEgressBytesPerSecond bounds what the connections of one sandbox with the network
	// mode PROXY carry, in both directions together; more waits. Default: no bound. At
	// least 64 KiB.
	MaxEgressBytesPerSecond int
}

// Timing holds the server's own intervals. Zero values mean the stated default.
type Timing struct {
	// ReapInterval is the time between two rounds of the reaper. Default: 15 s.
	// More than 30 s would break the promise of at most a minute.
	ReapInterval time.Duration
	// SlowReader is how long a reader that can be dropped may receive nothing.
	// Default: 60 s.
	SlowReader time.Duration
	// Reattach is how long the server retries after a connection to an agent
	// broke. Default: 30 s.
	Reattach time.Duration
	// AgentIdle is how long an unused connection to an agent stays open. Default:
	// 10 min.
	AgentIdle time.Duration
	// Hello bounds the handshake with an agent. Default: 10 s.
	Hello time.Duration
	// Keepalive is how long a client's connection may be silent before the server
	// pings it. Default: 30 s; at least 1 s.
	Keepalive time.Duration
	// KeepaliveTimeout bounds the answer. Then the connection is closed and its
	// calls end. Default: 20 s.
	KeepaliveTimeout time.Duration
	// Recheck is how often the credentials of running calls are checked again.
	// Default: 2 s.
	Recheck time.Duration
	// Probe is how often the provider is probed for health checks. Default: 10 s.
	Probe time.Duration
	// Receive bounds the time that the only message of a call may take. Default: 2 min.
	Receive time.Duration
	// LameDuck is how long Shutdown keeps serving while health checks fail.
	// Default: 0.
	LameDuck time.Duration
	// ConnectionAge is when a client is told to reconnect; its running calls go
	// on. 0: never.
	ConnectionAge time.Duration
	// Drain is how long streams may go on after that. Default: 1 s.
	Drain time.Duration
}

// Defaults that GetServerInfo shows.
const (
	defaultMaxMessageBytes = protocol.MaxMessage
	defaultOutputLogBytes  = 64 << 20
	defaultMaxRequestBytes = 64 << 20
)

// Check returns an error if New would refuse the configuration with every provider
// whose templates options checks and whose default resources these are.
func (c Config) Check(options providers.OptionsChecker, byDefault providers.Resources) error {
	c, err := c.withDefaults()
	if err != nil {
		return err
	}
	p, err := newPolicy(c, len(c.SpecSecret) == 0, options)
	if err != nil {
		return err
	}
	_, err = newSettings(c, p, byDefault)
	return err
}

func (c Config) withDefaults() (Config, error) {
	setDefault(&c.Version, "dev")
	setDefault(&c.protocolMinor, protocol.Minor)
	setDefault(&c.watchHeartbeat, defaultWatchHeartbeat)
	setDefault(&c.Logger, slog.Default())
	setDefault(&c.Limits.MaxMessageBytes, defaultMaxMessageBytes)
	setDefault(&c.Limits.MaxRequestBytes, defaultMaxRequestBytes)
	setDefault(&c.Limits.OutputLogBytes, defaultOutputLogBytes)
	setDefault(&c.Limits.EndRetention, time.Hour)
	setDefault(&c.Limits.DefaultIdleTTL, 24*time.Hour)
	setDefault(&c.Limits.CreateTimeout, 5*time.Minute)
	setDefault(&c.Limits.MaxConnections, 4_096)
	setDefault(&c.Limits.MaxUploads, 1_536)
	setDefault(&c.Limits.MaxForwards, 2_048)
	setDefault(&c.Limits.MaxEgressConnections, 2_048)
	setDefault(&c.Timing.ReapInterval, 15*time.Second)
	setDefault(&c.Timing.SlowReader, time.Minute)
	setDefault(&c.Timing.Receive, 2*time.Minute)
	setDefault(&c.Timing.Reattach, 30*time.Second)
	setDefault(&c.Timing.AgentIdle, 10*time.Minute)
	setDefault(&c.Timing.Hello, 10*time.Second)
	setDefault(&c.Timing.Keepalive, 30*time.Second)
	setDefault(&c.Timing.KeepaliveTimeout, 20*time.Second)
	setDefault(&c.Timing.Recheck, 2*time.Second)
	setDefault(&c.Timing.Probe, 10*time.Second)
	setDefault(&c.Timing.Drain, time.Second)
	if c.random == nil {
		c.random = rand.IntN
	}
	if c.Audit == nil {
		c.Audit = audit.Nowhere{}
	}
	if len(c.Templates) == 0 {
		c.Templates = []policy.Template{policy.DefaultTemplate()}
	}
	if err := c.Limits.check(); err != nil {
		return c, err
	}
	if err := c.Quotas.Check(); err != nil {
		return c, fmt.Errorf("server: Config.Quotas: %w", err)
	}
	if err := webhook.Check(c.Webhooks); err != nil {
		return c, fmt.Errorf("server: %w", err)
	}
	if v := policy.CheckAccess("access", c.Access); len(v) > 0 {
		return c, fmt.Errorf("server: Config.Access: %w", v.Err())
	}
	return c, nil
}

// checkSecrets reads the files that Check leaves out.
func (c Config) checkSecrets() error {
	if err := webhook.CheckSecrets(c.Webhooks); err != nil {
		return fmt.Errorf("server: %w", err)
	}
	return nil
}

// minRequestBytes has room for a message of the largest size, and its fields.
const minRequestBytes = 32 << 20

// minEgressRate keeps connections that share it from ending as idle.
const minEgressRate = 64 << 10

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
	if l.MaxMessageBytes < 64<<10 || l.MaxMessageBytes > protocol.MaxMessage {
		return errors.New("server: Limits.MaxMessageBytes must lie between 64 KiB and 16 MiB; Upload sends larger content")
	}
	if l.MaxRequestBytes < minRequestBytes {
		return fmt.Errorf("server: Limits.MaxRequestBytes must be at least %d MiB", minRequestBytes>>20)
	}
	if n := l.MaxEgressBytesPerSecond; n != 0 && n < minEgressRate {
		return fmt.Errorf("server: Limits.MaxEgressBytesPerSecond must be at least %d KiB, or 0 for no bound", minEgressRate>>10)
	}
	if l.MaxCreations < 0 || l.MaxConnections < 0 || l.MaxUploads < 0 || l.MaxForwards < 0 || l.MaxEgressConnections < 0 {
		return errors.New("server: a number of creations, uploads, forwards or egress connections is negative")
	}
	if l.MaxOutputBytes < 0 || l.OutputLogBytes < 0 || l.MaxFileBytes < 0 {
		return errors.New("server: a limit in bytes is negative")
	}
	return nil
}

// forAgent returns the limits that accompany every call to an agent.
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
