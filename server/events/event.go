// Package events records what happens to sandboxes, for watchers and webhooks.
//
// A Journal on the substrate holds the last events, so that a position in it is
// valid on every server and after a restart. Servers append what they do. An
// Observer compares the provider's sandboxes with what the journal has, and
// appends what nobody reported: what a sandbox or its substrate did by itself,
// and what a killed server did last.
package events

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sandgate/sandgate/providers"
)

// Type is what happened.
type Type string

// The types. Stored journals and webhooks have them.
const (
	Created      Type = "created"
	StateChanged Type = "state_changed"
	Expiring     Type = "expiring"
	Ended        Type = "ended"
	// Resync is never stored. A reader gets it in place of events that it missed.
	Resync Type = "resync"
)

// Types returns all types.
func Types() []Type { return []Type{Created, StateChanged, Expiring, Ended, Resync} }

// Reason is why it happened. Empty: unknown.
type Reason string

// The reasons.
const (
	Requested   Reason = "requested"
	TTL         Reason = "ttl"
	IdleTTL     Reason = "idle_ttl"
	OutOfMemory Reason = "out_of_memory"
	Replaced    Reason = "replaced"
)

// Event is a change of one sandbox.
type Event struct {
	// Seq is the event's place in the journal. Later events have greater ones.
	Seq uint64 `json:"seq"`
	// ID follows from what happened to which sandbox, so two servers that report
	// the same change give it the same one.
	ID   string    `json:"id"`
	Type Type      `json:"type"`
	Time time.Time `json:"time"`

	// Name is the substrate's name for the sandbox, and CreateTime when it was
	// created. Together they distinguish it from others of the same id.
	Name       string    `json:"name"`
	CreateTime time.Time `json:"create_time"`

	Tenant      string            `json:"tenant"`
	SandboxID   string            `json:"sandbox_id"`
	Incarnation string            `json:"incarnation,omitempty"`
	Template    string            `json:"template,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	// State is the one after the event; StateUnknown if it ended.
	State      providers.State `json:"state,omitempty"`
	Reason     Reason          `json:"reason,omitempty"`
	Principal  string          `json:"principal,omitempty"`
	Message    string          `json:"message,omitempty"`
	ExpireTime time.Time       `json:"expire_time,omitzero"`
}

// maxMessage bounds the text of an event, in bytes.
const maxMessage = 512

// New returns an event of a sandbox. Its time is now.
func New(t Type, info providers.Info, reason Reason) Event {
	e := Event{
		Type: t, Time: time.Now().UTC(), Name: info.Name, CreateTime: info.CreateTime.UTC(),
		Tenant: info.Spec.Tenant, SandboxID: info.Spec.ID, Incarnation: info.Incarnation,
		Template: info.Spec.Template, Labels: info.Spec.Labels, State: info.State, Reason: reason,
	}
	switch t {
	case Ended:
		e.State = providers.StateUnknown
	case Expiring:
		e.ExpireTime = info.ExpireTime().UTC()
	}
	if e.State == providers.StateFailed {
		e.Message = strings.ToValidUTF8(info.Message[:min(len(info.Message), maxMessage)], "")
		if info.Failure == providers.FailureOutOfMemory {
			e.Reason = OutOfMemory
		}
	}
	e.ID = e.id()
	return e
}

// By returns the event with the caller who asked for it.
func (e Event) By(principal string) Event {
	e.Reason, e.Principal = Requested, principal
	return e
}

func (e Event) id() string {
	h := sha256.New()
	fmt.Fprintf(h, "%q %d %q %s", e.Name, e.CreateTime.UnixNano(), e.Incarnation, e.Type)
	switch e.Type {
	case StateChanged:
		fmt.Fprintf(h, " %v", e.State)
	case Expiring:
		fmt.Fprintf(h, " %d", e.ExpireTime.UnixNano())
	}
	return "ev-" + hex.EncodeToString(h.Sum(nil)[:12])
}

// endID returns the ID of the end of the event's sandbox.
func (e Event) endID() string {
	e.Type = Ended
	return e.id()
}

// ExpiresBy returns the lifetime that ends first.
func ExpiresBy(info providers.Info) Reason {
	end := info.ExpireTime()
	if info.Spec.TTL > 0 && end.Equal(info.CreateTime.Add(info.Spec.TTL)) {
		return TTL
	}
	return IdleTTL
}

// Filter selects events. Empty fields select all, and Resync is always selected.
type Filter struct {
	Tenants   []string
	IDPrefix  string
	Templates []string
	Labels    map[string]string
	Types     []Type
}

// Matches reports whether the filter selects an event.
func (f Filter) Matches(e Event) bool {
	if e.Type == Resync {
		return true
	}
	for k, v := range f.Labels {
		if got, ok := e.Labels[k]; !ok || got != v {
			return false
		}
	}
	return contains(f.Tenants, e.Tenant) && strings.HasPrefix(e.SandboxID, f.IDPrefix) &&
		contains(f.Templates, e.Template) && contains(f.Types, e.Type)
}

func contains[T cmp.Ordered](list []T, v T) bool { return len(list) == 0 || slices.Contains(list, v) }
