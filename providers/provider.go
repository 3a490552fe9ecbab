// Package providers defines the interface to a substrate: create, find and delete
// sandboxes, and dial a byte stream to the agent inside one. The agent handles
// processes and files, in the same way on every substrate.
//
// The conformance suite in providers/providertest defines the behavior of a
// provider. This package has its types and errors.
package providers

import (
	"context"
	"encoding/json"
	"net"
	"net/netip"
)

// Provider manages the sandboxes of one substrate. It is safe for concurrent
// use, and several processes may share the substrate.
//
// The server guarantees that names are valid substrate names (1 to 63
// characters of a-z, 0-9 and "-", beginning and ending with a letter or digit),
// that a Spec has its defaults filled in, and that no method is called after
// Close.
//
// Every method must return promptly when its context ends, with an error that
// wraps context.Cause. An error wraps one of this package's sentinels if one
// fits. The server maps all others to INTERNAL and hides their text from callers.
type Provider interface {
	// Create makes the sandbox and returns a connection on which its agent has
	// spoken. The caller must use the connection at once, since an agent hangs up
	// on a silent peer, or close it. It is nil only if Info.Created is false. On
	// any error, a context's end included, Create must leave nothing behind.
	//
	// If a sandbox with this name and an equal Spec.Hash exists, Create waits until
	// it is ready and returns it with Info.Created false, even if another process
	// is creating it. The error wraps ErrExists if the hash differs, and
	// ErrNotActive if that sandbox has failed.
	Create(ctx context.Context, name string, spec Spec) (Info, net.Conn, error)

	// Get returns one sandbox. A sandbox that ended by itself stays in StateFailed
	// until it is deleted. The error wraps ErrNotFound if no such sandbox exists.
	Get(ctx context.Context, name string) (Info, error)

	// List returns a page of sandboxes in the order of their names. A page may be
	// empty and still have a token. The error wraps ErrTokenExpired if the substrate
	// no longer accepts the token.
	List(ctx context.Context, q Query) (Page, error)

	// Update changes labels, lifetimes and the time of last activity, and returns
	// the result. Concurrent updates must not lose each other's labels, and
	// LastActivity never goes back. The error wraps ErrNotActive if the sandbox is
	// being deleted.
	Update(ctx context.Context, name string, c Change) (Info, error)

	// Delete ends the sandbox: when it returns nil, its processes are gone and its
	// name can be used again. The error wraps ErrNotFound if no such sandbox exists
	// or only a half-made one was removed, and ErrReplaced if c.Incarnation is set
	// and is not the current one. Of two concurrent calls one deletes.
	//
	// The error wraps ErrInUse, and the sandbox stays, if c.IdleSince is set and
	// LastActivity is later. The check and the decision to delete are one step: of
	// a concurrent Update of LastActivity and a Delete that excludes it, in any
	// two processes, only one succeeds.
	Delete(ctx context.Context, name string, c Condition) error

	// Dial opens a byte stream to the agent inside. Deadlines of the connection must
	// work. Closing it must release all its resources and must not disturb the
	// sandbox. It must end when the sandbox is deleted. The error wraps
	// ErrNotFound, ErrNotActive, or ErrUnavailable if a retry may succeed.
	Dial(ctx context.Context, name string) (net.Conn, error)

	// Describe returns what the provider enforces here. The server calls it once,
	// at its start.
	Describe(ctx context.Context) (Description, error)

	// Close releases the provider's resources and leaves the sandboxes running.
	Close() error
}

// Suspender is implemented by a provider that can stop a sandbox's processes
// and keep its disk.
type Suspender interface {
	// Suspend returns when the processes are gone. Suspending twice is no error.
	Suspend(ctx context.Context, name string) (Info, error)
	// Resume starts the sandbox again as another incarnation and returns a
	// connection to its agent, as Create does. Resuming an active sandbox is no
	// error and returns no connection.
	Resume(ctx context.Context, name string) (Info, net.Conn, error)
}

// Router is implemented by a provider that can lead addresses of a sandbox with
// NetworkProxy to the sandbox itself, where its agent listens.
type Router interface {
	// Route leads exactly these prefixes there, in place of those of an earlier call.
	// IPv6 may be left out where the sandbox has none. The error wraps ErrUnsupported
	// if the sandbox's runtime has no such routes, ErrNotFound if no such sandbox
	// exists, and ErrNotActive.
	Route(ctx context.Context, name string, prefixes []netip.Prefix) error
}

// Pooler is implemented by a provider that keeps started sandboxes ready.
type Pooler interface {
	// KeepPools replaces the set of pools to keep. It checks them, deletes the
	// sandboxes that no pool needs, and fills the pools in the background until
	// Close. It does not wait for sandboxes to start. The error wraps ErrInvalid if
	// a pool cannot be kept.
	//
	// Create must claim a started sandbox if the pool of Spec.Template has one that
	// fits the spec, and set Info.FromPool. No sandbox may be claimed twice, even by
	// two processes. List and Get do not return unclaimed sandboxes.
	KeepPools(ctx context.Context, pools []Pool) error

	// PoolStatus counts the sandboxes of one template's pool. The error wraps
	// ErrNotFound if the template has no pool.
	PoolStatus(ctx context.Context, template string) (PoolStatus, error)
}

// OptionsChecker is implemented by a provider that can check a template before the
// first sandbox is made from it. The server calls it at its start, and does not
// start after an error.
type OptionsChecker interface {
	// CheckOptions checks a template's provider_options, a JSON object or nil,
	// and its allow_options, the names of those that requests may set. It must
	// reject options that Create would reject for every request: unknown names,
	// values of a wrong type, values that are never valid. A missing option is no
	// error if a request can still set it.
	//
	// It must not query the substrate. The error wraps ErrInvalid, begins with the
	// template's field, names the option, and lists what is allowed.
	CheckOptions(options json.RawMessage, allowed []string) error
}

// Coordinator is implemented by a provider whose substrate several servers may
// share. It elects the one that deletes expired sandboxes, observes all for events,
// and sends webhooks.
type Coordinator interface {
	// Lead calls do each time that this process becomes the leader, and returns
	// when ctx has ended and do has returned.
	//
	// When this process may lose its leadership, the context of do ends with a
	// cause before another process begins; do must then return promptly. A process
	// that crashes is replaced within 20 s, one that closes at once. Running do
	// twice at a time must be safe all the same: a request may arrive late.
	Lead(ctx context.Context, do func(ctx context.Context))
	// Lapses reports whether the leadership of a process that is stopped, but not dead,
	// ends. If not, each process deletes expired sandboxes, whoever leads.
	Lapses() bool
}

// Membership is implemented by a provider whose substrate several servers may share.
// It tells each which of them are alive, so that they can divide work.
type Membership interface {
	// Join makes this process a member until ctx ends. It calls changed, one call at a
	// time, when this process is a member, and again when the live members have
	// changed: with its own name, and with the names of all live members in order. A
	// member that crashes is no longer alive for the others after 14 s, one that leaves
	// after 3 s. Members may disagree for as long, so what two do at a time must be
	// safe. Without the substrate changed is not called.
	Join(ctx context.Context, changed func(self string, live []string))
}

// Ledger is implemented by a provider whose substrate several servers may share. It
// keeps small documents on the substrate, such as the reservations by which quotas
// hold over all servers.
type Ledger interface {
	// ChangeLedger calls change with the document of this name, nil if there is
	// none, and stores the result. A nil result leaves the document as it is. Two
	// changes never overlap: change is called again if another process has
	// replaced the document meanwhile, so it must have no effects. Its error is
	// returned as it is. Names are those of sandboxes, in a space of their own.
	ChangeLedger(ctx context.Context, name string, change func(document []byte) ([]byte, error)) error
}

// EndReporter is implemented by a provider whose substrate may replace a failed
// sandbox by itself and report how the previous incarnation ended.
type EndReporter interface {
	// Ending returns how an incarnation of a sandbox ended, as far as the substrate
	// reports it now. The zero Ending means that it never will. The error wraps
	// ErrNotFound if no such sandbox exists.
	Ending(ctx context.Context, name, incarnation string) (Ending, error)
}

// Verifier is implemented by a provider that finds out while it runs whether a protection
// is enforced.
type Verifier interface {
	// Enforcement returns Description.Enforcement as it is known now. It must answer
	// from memory, also after Close.
	Enforcement() []Enforcement
}

// Prober is implemented by a provider that can check its substrate cheaply.
type Prober interface {
	// Probe returns an error while no sandbox could be created, whatever the
	// request: the state cannot be written, the API server does not answer, the
	// runtime is gone. The server calls it every few seconds, so it must cost
	// little, and must return promptly when ctx ends.
	Probe(ctx context.Context) (Probe, error)
}
