package directory

import (
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/atomicfile"
	"github.com/sandgate/sandgate/providers/internal/record"
)

// Phase is the stage of a sandbox's life, as written to disk.
type Phase string

// The phases.
const (
	// Creating: the holder of the lock makes it. Without a holder it is half made
	// and must go.
	Creating Phase = "creating"
	// Active: it was ready once.
	Active Phase = "active"
	// Suspended: it has no processes, or is about to lose them, or a resumption was
	// interrupted. Its files count.
	Suspended Phase = "suspended"
	// Deleting: the next holder of the lock must finish the deletion.
	Deleting Phase = "deleting"
	// Unclaimed: it was ready once and waits in its pool.
	Unclaimed Phase = "unclaimed"
)

// Base is the part of a record that all sandboxes in directories have. A provider
// embeds it beside the fields of its own substrate.
type Base struct {
	record.Sandbox
	Phase        Phase    `json:"phase"`
	Container    string   `json:"container"` // its name, which a claim does not change
	Incarnation  string   `json:"incarnation"`
	Runtime      string   `json:"runtime"`
	WritableRoot bool     `json:"writable_root,omitempty"`
	NotEnforced  []string `json:"not_enforced,omitempty"`
	FromPool     bool     `json:"from_pool,omitempty"`
	Fit          string   `json:"fit,omitempty"` // what a claim must fit
}

// Record is a pointer to a struct that embeds Base.
type Record interface{ base() *Base }

func (b *Base) base() *Base { return b }

// Info returns what the record has, with the state that it implies. An active sandbox
// has no state yet.
func (b *Base) Info(name string) providers.Info {
	out := b.Sandbox.Info(name)
	out.Incarnation, out.FromPool = b.Incarnation, b.FromPool
	out.Runtime, out.ReadOnlySystem, out.NotEnforced = b.Runtime, !b.WritableRoot, b.NotEnforced
	switch b.Phase {
	case Creating:
		out.State = providers.StateCreating
	case Deleting:
		out.State = providers.StateDeleting
	case Suspended:
		out.State = providers.StateSuspended
	}
	return out
}

// kept reports whether the sandbox was ready and is not being deleted.
func (b *Base) kept() bool { return b.Phase == Active || b.Phase == Suspended }

// Write replaces the record of a sandbox.
func Write(d Dir, r Record) error { return atomicfile.WriteJSON(d.Record(), r) }
