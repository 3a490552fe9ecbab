// Package carrier carries the connections of sandboxes with the network mode
// PROXY. It holds a stream to the agent of each, on which the agent announces
// connections, and gives each allowed connection a stream of its own.
package carrier

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/egress"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/limit"
)

// Config configures a Carrier. All fields but Route and BytesPerSecond must be set.
type Config struct {
	// Agents connects to agents. The Carrier keeps its connections open.
	Agents *agentconn.Set
	// Policy returns what a sandbox may connect to.
	Policy func(providers.Spec) (*egress.Policy, error)
	// Route leads addresses of a sandbox to its agent, as providers.Router does. nil: no
	// sandbox has such routes.
	Route func(ctx context.Context, name string, prefixes []netip.Prefix) error
	// Dialer connects to destinations.
	Dialer *egress.Dialer
	// Authority returns the certificate authority of an incarnation of a sandbox.
	Authority func(key agentconn.Key, incarnation string) (*egress.Authority, error)
	// Secrets returns the secrets of a tenant.
	Secrets func(tenant string) egress.Secrets
	// MaxConns bounds the connections of a sandbox.
	MaxConns int
	// BytesPerSecond bounds what the connections of a sandbox carry, in both directions
	// together. 0: nothing does.
	BytesPerSecond int
	// Take takes a slot of the connections of a tenant and of all, if one is free at
	// once. Release gives it back.
	Take    func(tenant string) bool
	Release func(tenant string)
	// Log is where the Carrier logs.
	Log *slog.Logger
	// OnOpen is called when a connection is open, and OnEnd when it has ended, or
	// was not opened.
	OnOpen func()
	OnEnd  func(Ended)
}

// Ended is a connection that has ended, or was not opened.
type Ended struct {
	Key agentconn.Key
	// Target is what the program asked for, HOST:PORT.
	Target string
	// Addr is the address of the connection. Empty: it was not opened.
	Addr string
	// Sent and Received are the bytes to and from the destination.
	Sent, Received int64
	Duration       time.Duration
	// Err is nil at a regular end, a *egress.Denied if a rule is missing, ErrLimit or
	// ErrSharedLimit, or what went wrong.
	Err error
	// Unrecorded is true for most connections of a sandbox that were denied or not
	// opened, where it has many in a short time. Suppressed counts them in the next
	// one that is to be recorded.
	Unrecorded bool
	Suppressed int64
}

// ErrLimit is the end of a connection beyond Config.MaxConns, and ErrSharedLimit of one
// for which Config.Take has no slot.
var (
	ErrLimit       = errors.New("the sandbox has too many connections")
	ErrSharedLimit = errors.New("this server carries as many connections of sandboxes as it may, for this tenant or for all")
)

// maxDials bounds the concurrent attempts to connect to agents: after a start there
// may be many sandboxes.
const maxDials = 16

// maxLookups bounds the sandboxes that Refresh looks up at a time.
const maxLookups = 16

// Carrier carries the connections of sandboxes.
type Carrier struct {
	cfg    Config
	ctx    context.Context //nolint:containedctx // the Carrier's own life, which no caller has
	cancel context.CancelCauseFunc
	dials  limit.Slots
	work   sync.WaitGroup

	handover time.Duration
	taking   time.Duration // how long an agent may take to take a connection's stream

	mu      sync.Mutex
	holders map[string]*holder // by the sandbox's name
}

// New returns a Carrier that holds no sandbox.
func New(cfg Config) *Carrier {
	c := &Carrier{cfg: cfg, dials: limit.New(maxDials), handover: handover, taking: firstMessage, holders: make(map[string]*holder)}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	return c
}

// Hold begins to carry the connections of a sandbox, until the sandbox is gone or
// not active. It may be called again, and returns at once.
func (c *Carrier) Hold(key agentconn.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return
	}
	if h, ok := c.holders[key.Name]; ok {
		h.again = true
		select {
		case h.wake <- struct{}{}:
		default:
		}
		return
	}
	h := newHolder(c, key)
	c.holders[key.Name] = h
	c.work.Go(h.run)
}

// leave forgets a holder whose sandbox is gone. It reports false if Hold was called
// meanwhile.
func (c *Carrier) leave(h *holder) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.again {
		h.again = false
		return false
	}
	if c.holders[h.key.Name] == h {
		delete(c.holders, h.key.Name)
	}
	return true
}

// Update applies the sandbox's present rules: to new connections, and to open ones,
// of which it cuts those that they do not allow. info is the sandbox after an
// update, which counts if the provider cannot be asked.
func (c *Carrier) Update(ctx context.Context, info providers.Info) {
	c.mu.Lock()
	h := c.holders[info.Name]
	c.mu.Unlock()
	if h != nil && h.refresh(ctx) != nil {
		h.apply(info.Spec)
	}
}

// errHandedOver ends the holding of a sandbox that another server holds.
var errHandedOver = errors.New("another server carries the sandbox's connections")

// handover is how long a sandbox is still held that another server is to hold: that one
// may not have found it yet.
const handover = 30 * time.Second

// Share is called with the sandboxes that several servers share, again and again. It
// holds those that are this server's, by mine, and applies rules that another server
// has changed. What others hold it leaves when no connection is open.
func (c *Carrier) Share(ctx context.Context, all []providers.Info, mine func(name string) bool) {
	for _, info := range all {
		if mine(info.Name) {
			c.Hold(agentconn.KeyOf(info))
		}
		c.mu.Lock()
		h := c.holders[info.Name]
		c.mu.Unlock()
		if h != nil && h.stale(info.Spec) {
			// What was listed may be older than what applies.
			_ = h.refresh(ctx)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, h := range c.holders {
		switch {
		case mine(name):
			h.lost = time.Time{}
		case h.lost.IsZero():
			h.lost = time.Now()
		case time.Since(h.lost) > c.handover && h.idle():
			delete(c.holders, name)
			h.cancel(errHandedOver)
		}
	}
}

// Owner returns the member that carries the connections of a sandbox. Members with the
// same view agree on it, and a change of the members moves few sandboxes.
func Owner(members []string, name string) string {
	var owner string
	var most [sha256.Size]byte
	for _, member := range members {
		// Rendezvous hashing: the member with the greatest digest.
		if sum := sha256.Sum256([]byte(member + "\x00" + name)); owner == "" || bytes.Compare(sum[:], most[:]) > 0 {
			owner, most = member, sum
		}
	}
	return owner
}

// Close resets all connections and holds no sandbox any more. Wait returns when
// everything has ended.
func (c *Carrier) Close() {
	// Under the lock, so that no Hold begins after Wait.
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancel(fault.ErrShuttingDown)
	c.cfg.Agents.Close()
}

// Wait returns when everything has ended after Close.
func (c *Carrier) Wait() {
	c.work.Wait()
	c.cfg.Agents.Wait()
}

// Refresh applies the present rules to all connections, new and open, after
// Config.Policy has changed. Where a sandbox cannot be looked up, it allows nothing,
// and has the stream to its agent opened again, which looks until it succeeds.
func (c *Carrier) Refresh(ctx context.Context) {
	c.mu.Lock()
	holders := slices.Collect(maps.Values(c.holders))
	c.mu.Unlock()
	var looks errgroup.Group
	looks.SetLimit(maxLookups)
	for _, h := range holders {
		looks.Go(func() error {
			if err := h.refresh(ctx); err != nil {
				c.cfg.Log.WarnContext(ctx, "new network rules could not be applied to a sandbox: all connections are denied until they can",
					"sandbox_id", h.key.ID, "tenant", h.key.Tenant, "error", err)
				h.set(nil, nil)
				h.reopen(err)
			}
			return nil
		})
	}
	_ = looks.Wait()
}
