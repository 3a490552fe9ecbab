package docker

import (
	"github.com/sandgate/sandgate/providers/internal/atomicfile"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// phase is the stage of a sandbox's life, as written to disk.
type phase string

const (
	// phaseCreating: the holder of the lock makes it. Without a holder it is
	// half-made and must go.
	phaseCreating phase = "creating"
	// phaseActive: it was ready once.
	phaseActive phase = "active"
	// phaseSuspended: its container is stopped, or about to be, or a resumption was
	// interrupted. Its volumes count.
	phaseSuspended phase = "suspended"
	// phaseDeleting: the next holder of the lock must finish the deletion.
	phaseDeleting phase = "deleting"
	// phaseUnclaimed: it was ready once and waits in its pool.
	phaseUnclaimed phase = "unclaimed"
)

// record is what the provider stores about a sandbox.
type record struct {
	shared.Sandbox
	Phase       phase  `json:"phase"`
	Container   string `json:"container"` // its name, which a claim does not change
	Disk        string `json:"disk"`      // begins the names of its volumes
	Incarnation string `json:"incarnation"`
	// Image is the sandbox's image by content: a digest of its registry, or the id
	// of an image that has none.
	Image        string    `json:"image"`
	Transport    Transport `json:"transport"`
	Runtime      string    `json:"runtime"`
	Unprivileged bool      `json:"unprivileged"`
	WritableRoot bool      `json:"writable_root,omitempty"`
	NotEnforced  []string  `json:"not_enforced,omitempty"`
	FromPool     bool      `json:"from_pool,omitempty"`
	Fit          string    `json:"fit,omitempty"` // what a claim must fit, see fitOf
}

func readRecord(h home) (*record, error) { return shared.Read[record](h.record()) }

func (r *record) write(h home) error { return atomicfile.WriteJSON(h.record(), r) }
