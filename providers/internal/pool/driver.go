// Package pool keeps pools of started sandboxes at their targets, on every
// substrate in the same way. A provider adds a Driver for its own.
package pool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net"
	"regexp"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/record"
)

// Driver starts, finds, claims and drops the sandboxes of pools on one substrate.
// M is the driver's own description of a member, and C that of a claim. A Driver is safe for concurrent use, also by several processes.
type Driver[M, C any] interface {
	// Start starts a member with this name and returns when it can be claimed. It
	// returns ErrFull if another server has filled the pool meanwhile. After an
	// error no member that can be claimed is left.
	Start(ctx context.Context, p providers.Pool, name string) error

	// Unclaimed lists the members that fit the spec's pool, whichever server
	// started them, in no particular order. Without a spec it lists those of all
	// pools. With cached set, the answer may be some milliseconds old.
	Unclaimed(ctx context.Context, spec *providers.Spec, cached bool) iter.Seq2[Member[M], error]

	// Claim makes a member the sandbox of a creation and returns a connection to
	// its agent. It returns nil if another call was faster, or if the agent does
	// not answer. After a crash at any point the member is either claimed as a
	// whole or can be dropped. An error ends the creation.
	Claim(ctx context.Context, member M, claim C) (net.Conn, error)

	// Drop deletes a member unless it is claimed first.
	Drop(ctx context.Context, m Member[M]) error
}

// Member is a sandbox of a pool that is not claimed.
type Member[M any] struct {
	Name    string // as given to Start
	State   State
	Created time.Time
	Value   M
}

// State is what can be done with a member.
type State int

// The states of a member.
const (
	// Ready: it can be claimed for the spec of its pool.
	Ready State = iota
	// Starting: a server starts it.
	Starting
	// Stale: it was started for another spec.
	Stale
	// Broken: it has ended, or the server that started it has crashed.
	Broken
)

// ErrFull is returned by Start when the pool is at its target.
var ErrFull = errors.New("the pool is full")

var templateName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// IsTemplateName reports whether a template of this name can have a pool. No such name
// has a dot.
func IsTemplateName(name string) bool { return templateName.MatchString(name) }

// CheckTemplate returns an error unless the pool's template has a name for pools and is
// that of its spec.
func CheckTemplate(want providers.Pool) error {
	if !IsTemplateName(want.Template) {
		return errors.New("a name must be 1 to 63 characters of a-z, 0-9 and '-'")
	}
	if want.Spec.Template != want.Template {
		return fmt.Errorf("its spec is of template %q", want.Spec.Template)
	}
	return nil
}

// Fingerprint returns a short text that is equal for specs that the same member
// fits.
func Fingerprint(spec providers.Spec) string {
	data, err := json.Marshal(Fixed(spec))
	if err != nil {
		return record.Random() // of options that are not JSON: nothing fits
	}
	return record.Digest(string(data))
}

// Fixed returns what a started sandbox cannot change any more.
func Fixed(spec providers.Spec) providers.Spec {
	spec.Tenant, spec.ID, spec.Principal, spec.Hash = "", "", "", ""
	spec.Labels, spec.TTL, spec.IdleTTL, spec.Access, spec.Egress = nil, 0, 0, nil, nil
	if len(spec.Env) == 0 {
		spec.Env = nil
	}
	return spec
}
