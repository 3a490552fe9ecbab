// Package carrier carries the connections of sandboxes with the network mode
// PROXY. It holds a stream to the agent of each, on which the agent announces
// connections, and gives each allowed connection a stream of its own.
package carrier

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/egress"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/limit"
)

// Config configures a Carrier. All fields must be set.
type Config struct {
	// Agents connects to agents. The Carrier keeps its connections open.
	Agents *agentconn.Set
	// Policy returns what a sandbox may connect to.
	Policy func(providers.Spec) (*egress.Policy, error)
	// Dialer connects to destinations.
	Dialer *egress.Dialer
	// MaxConns bounds the connections of a sandbox.
	MaxConns int
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

// Carrier carries the connections of sandboxes.
type Carrier struct {
	cfg    Config
	ctx    context.Context //nolint:containedctx // the Carrier's own life, which no caller has
	cancel context.CancelCauseFunc
	dials  limit.Slots
	work   sync.WaitGroup

	mu      sync.Mutex
	holders map[string]*holder // by the sandbox's name
}

// New returns a Carrier that holds no sandbox.
func New(cfg Config) *Carrier {
	c := &Carrier{cfg: cfg, dials: limit.New(maxDials), holders: make(map[string]*holder)}
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
	delete(c.holders, h.key.Name)
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
