// Package agentconn connects the server to the agents inside sandboxes: it dials
// them, shakes hands, shares one connection among the calls of a sandbox, and
// checks the frames that agents send. It trusts no agent.
package agentconn

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/limit"
)

// Key identifies a sandbox: its tenant and id, and the name that the substrate
// knows it by.
type Key struct{ Tenant, ID, Name string }

// KeyOf returns the key of a sandbox that the provider returned.
func KeyOf(info providers.Info) Key {
	return Key{Tenant: info.Spec.Tenant, ID: info.Spec.ID, Name: info.Name}
}

// Conn is one connection to the agent of one incarnation. It never redials: once
// it breaks it is dead, and the next call dials again after another look at the
// incarnation.
type Conn struct {
	Key         Key
	Incarnation string
	// Policies are the template's and the sandbox's, from Spec.Access.
	Policies []*sandboxv1.AccessPolicy
	// Agent makes unary calls and uploads. OpenStream opens server streams.
	Agent agentv1.AgentServiceClient
	// Deduplicates is true if the agent carries out a call with an id only once.
	Deduplicates bool
	// Activity belongs to package lifetime.
	Activity Activity

	client *grpc.ClientConn
	pipe   *pipe
	info   atomic.Pointer[providers.Info]
	// users counts running calls, and inspections the server's own requests.
	// Inspections keep the connection open, but are no activity of the sandbox.
	users, inspections atomic.Int32
	// lastCall is the end of the last call, and lastUsed that of the last call or
	// inspection, in Unix nanoseconds.
	lastCall, lastUsed atomic.Int64
}

// Activity is the state of writing a sandbox's last activity to the provider.
type Activity struct {
	// Written is the last activity that the provider has or is being sent, and
	// Confirmed the last one that it has stored, in Unix nanoseconds.
	Written, Confirmed atomic.Int64
	// Writing is held while a call waits for its write, and FailedAt is the time of
	// the last write that failed; nil: none has.
	Writing  limit.Slots
	FailedAt atomic.Pointer[time.Time]
}

// pipe closes dead when gRPC gives up the connection.
type pipe struct {
	net.Conn
	once sync.Once
	dead chan struct{}
	err  error
}

func (p *pipe) Close() error {
	p.once.Do(func() {
		p.err = p.Conn.Close()
		close(p.dead)
	})
	return p.err
}

// Info returns the sandbox as the provider last returned it. It is shared and
// must not be changed.
func (c *Conn) Info() *providers.Info { return c.info.Load() }

// SetInfo stores a newer Info.
func (c *Conn) SetInfo(info providers.Info) { c.info.Store(&info) }

func (c *Conn) alive() bool {
	select {
	case <-c.pipe.dead:
		return false
	default:
		return true
	}
}

// Cut breaks the connection. It closes the byte stream first, so that the agent
// sees a broken pipe and not a set of cancelled calls.
func (c *Conn) Cut() {
	_ = c.pipe.Close()
	_ = c.client.Close()
}

func (c *Conn) beginCall() {
	c.users.Add(1)
	c.called()
}

// Release must be called once for each Acquire.
func (c *Conn) Release() {
	c.called()
	c.users.Add(-1)
}

// Hold keeps the connection open for a call that is no activity in itself. It takes the
// place of Release, and must be ended with EndInspection.
func (c *Conn) Hold() {
	c.beginInspection()
	c.Release()
}

// Touch records activity of a call that holds the connection.
func (c *Conn) Touch() { c.called() }

func (c *Conn) called() {
	now := time.Now().UnixNano()
	c.lastCall.Store(now)
	c.lastUsed.Store(now)
}

func (c *Conn) beginInspection() {
	c.inspections.Add(1)
	c.lastUsed.Store(time.Now().UnixNano())
}

// EndInspection must be called once for each Inspect.
func (c *Conn) EndInspection() {
	c.lastUsed.Store(time.Now().UnixNano())
	c.inspections.Add(-1)
}

// InUse reports whether a call runs.
func (c *Conn) InUse() bool { return c.users.Load() > 0 }

// LastCall returns the end of the last call, in Unix nanoseconds, or 0.
func (c *Conn) LastCall() int64 { return c.lastCall.Load() }
