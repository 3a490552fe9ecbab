package local

import (
	"github.com/sandgate/sandgate/providers/internal/atomicfile"
	shared "github.com/sandgate/sandgate/providers/internal/record"
	"github.com/sandgate/sandgate/providers/local/oci"
)

// phase is the stage of a sandbox's life, as written to disk.
type phase string

const (
	// phaseCreating: the holder of the lock makes it. Without a holder it is
	// half-made and must go.
	phaseCreating phase = "creating"
	// phaseActive: it was ready once.
	phaseActive phase = "active"
	// phaseDeleting: the next holder of the lock must finish the deletion.
	phaseDeleting phase = "deleting"
	// phaseUnclaimed: it was ready once and waits in its pool.
	phaseUnclaimed phase = "unclaimed"
)

// record is what the provider stores about a sandbox.
type record struct {
	shared.Sandbox
	Phase        phase       `json:"phase"`
	Container    string      `json:"container,omitempty"` // the runtime's name for it; empty: the sandbox's
	Incarnation  string      `json:"incarnation"`
	Init         oci.Process `json:"init"`
	Helper       oci.Process `json:"helper,omitzero"` // that ends after Init: gVisor's file server
	Loop         string      `json:"loop,omitempty"`  // such as "/dev/loop3"
	Runtime      string      `json:"runtime"`
	Transport    Transport   `json:"transport"`
	Profile      Profile     `json:"profile"`
	UID          uint32      `json:"uid,omitempty"` // of its processes and its group; 0: shared, of an older server
	Listen       string      `json:"listen"`        // where connect finds the agent
	WritableRoot bool        `json:"writable_root,omitempty"`
	NotEnforced  []string    `json:"not_enforced,omitempty"`
	Image        string      `json:"image,omitempty"` // the digest under which it is unpacked
	FromPool     bool        `json:"from_pool,omitempty"`
	Fit          string      `json:"fit,omitempty"` // what a claim must fit, see fitOf
}

// readRecord returns the record of an older server, which names no transport, as
// one of a half-made sandbox: this server cannot reach its agent.
func readRecord(b bundle) (*record, error) {
	r, err := shared.Read[record](b.record())
	if err != nil {
		return nil, err
	}
	if r.Transport == "" && r.Phase != phaseDeleting {
		r.Phase = phaseCreating
	}
	return r, nil
}

// container is what the runtime and the cgroups call the sandbox of this name.
// One that came from a pool was started before anybody had named it.
func (r *record) container(name string) string {
	if r == nil || r.Container == "" {
		return name
	}
	return r.Container
}

func (r *record) write(b bundle) error { return atomicfile.WriteJSON(b.record(), r) }
