// Package providers defines what a substrate of sandboxes must do: create,
// find and delete sandboxes, and dial a byte stream to the agent inside one.
// Processes and files are the agent's business and the same everywhere.
//
// The conformance suite in providers/providertest is the definition of a
// provider; this package is its vocabulary.
package providers

import (
	"context"
	"encoding/json"
	"net"
)

// Provider manages the sandboxes of one substrate. It is safe for concurrent
// use, also by several processes that share the substrate.
//
// The server guarantees that names are valid substrate names (1 to 63
// characters of a-z, 0-9 and "-", beginning and ending with a letter or digit),
// that a Spec has its defaults filled in, and that no method is called after
// Close.
//
// Every method must return promptly when its context ends, with an error that
// wraps context.Cause. Errors wrap one of this package's sentinels where one
// fits; the server maps anything else to INTERNAL and does not show it to the
// caller.
type Provider interface {
	// Create makes the sandbox and returns a connection on which its agent has
	// spoken. The caller must use the connection at once, since an agent hangs up
	// on a silent peer, or close it. It is nil only if Info.Created is false. On
	// any error, a context's end included, Create must leave nothing behind.
	//
	// If a sandbox with this name exists and its Spec.Hash is equal, Create
	// must wait until that one is ready and return it with Info.Created false,
	// also when another process is creating it at the same time. If the hash
	// differs, the error wraps ErrExists; if the hash is equal and that sandbox
	// has ended by itself, ErrNotActive.
	Create(ctx context.Context, name string, spec Spec) (Info, net.Conn, error)

	// Get returns one sandbox. A sandbox that ended by itself is returned with
	// StateFailed until it is deleted. The error wraps ErrNotFound when there
	// is none.
	Get(ctx context.Context, name string) (Info, error)

	// List returns sandboxes in the order of their names, in pages. A page may
	// be empty and still have a token. A token that the substrate no longer
	// accepts is ErrTokenExpired.
	List(ctx context.Context, q Query) (Page, error)

	// Update changes labels, lifetimes and the time of last activity, and
	// returns the result. Concurrent updates must not lose each other's labels;
	// LastActivity never goes back. The error wraps ErrNotActive when the sandbox
	// is being deleted.
	Update(ctx context.Context, name string, c Change) (Info, error)

	// Delete ends the sandbox: when it returns nil, its processes are gone and
	// its name can be used again. The error wraps ErrNotFound when there is
	// none (also when only a half-made one was cleaned away), and ErrReplaced
	// when c.Incarnation is set and is not the present one. Deleting twice at
	// once deletes once.
	//
	// The error wraps ErrInUse, and the sandbox stays, when c.IdleSince is set
	// and LastActivity is later. The check and the decision to delete are one
	// step: of an Update of LastActivity and a Delete that forbids it, at the
	// same time and from different processes, only one succeeds.
	Delete(ctx context.Context, name string, c Condition) error

	// Dial opens a byte stream to the agent inside. Closing the connection must
	// release all that carries it and must not disturb the sandbox. The error
	// wraps ErrNotFound, ErrNotActive, or ErrUnavailable when another try may
	// succeed.
	Dial(ctx context.Context, name string) (net.Conn, error)

	// Describe tells what the provider enforces here. It is called once, when
	// the server starts.
	Describe(ctx context.Context) (Description, error)

	// Close releases what the provider holds and leaves the sandboxes running.
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

// Pooler is implemented by a provider that keeps started sandboxes ready.
type Pooler interface {
	// KeepPools says which pools to keep, in place of those said before. It
	// checks them, returns without waiting for sandboxes to start, and fills
	// each in the background until Close. Sandboxes of a pool that is no longer
	// said are deleted. The error wraps ErrInvalid when a pool cannot be kept.
	//
	// Create must claim a started sandbox when the pool of Spec.Template has
	// one that fits the spec, and must say so in Info.FromPool; a claim is
	// never given to two callers, also not by two processes. A sandbox that
	// nobody has claimed is in no List and no Get.
	KeepPools(ctx context.Context, pools []Pool) error

	// PoolStatus counts the sandboxes of one template's pool. The error wraps
	// ErrNotFound when the template has no pool.
	PoolStatus(ctx context.Context, template string) (PoolStatus, error)
}

// OptionsChecker is implemented by a provider that can say what is wrong with a
// template before the first sandbox is made from it. The server asks when it
// starts, and does not start when something is.
type OptionsChecker interface {
	// CheckOptions checks a template's provider_options, a JSON object or nil,
	// and its allow_options, the names of those that requests may set. It must
	// refuse options that Create would refuse whatever the request says: unknown
	// names, values of a wrong type, values that are never right. What is missing
	// is none of that where a request can still say it.
	//
	// It must not ask the substrate. The error wraps ErrInvalid, begins with the
	// template's field, names the option, and says what is allowed.
	CheckOptions(options json.RawMessage, allowed []string) error
}

// Coordinator is implemented by a provider whose substrate several servers may
// share. It elects the one that deletes expired sandboxes.
type Coordinator interface {
	// Lead calls do each time that this process becomes the leader, and returns
	// when ctx has ended and do has returned.
	//
	// When this process may lose its leadership, the context of do ends with a
	// cause before another process begins; do must then return promptly. A process
	// that crashes is replaced within 20 s, one that closes at once. Running do
	// twice at a time must be safe all the same: a request may arrive late.
	Lead(ctx context.Context, do func(ctx context.Context))
}

// EndReporter is implemented by a provider whose substrate may replace a failed
// sandbox by itself and report how the previous incarnation ended.
type EndReporter interface {
	// Ending returns how an incarnation of a sandbox ended, as far as the substrate
	// reports it now. The zero Ending means that it never will. The error wraps
	// ErrNotFound if no such sandbox exists.
	Ending(ctx context.Context, name, incarnation string) (Ending, error)
}

// Prober is implemented by a provider that can tell cheaply whether its
// substrate works.
type Prober interface {
	// Probe returns an error while no sandbox could be created, whatever the
	// request: the state cannot be written, the API server does not answer, the
	// runtime is gone. The server calls it every few seconds, so it must cost
	// little, and must return promptly when ctx ends.
	Probe(ctx context.Context) (Probe, error)
}
