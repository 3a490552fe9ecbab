// Package record holds what all providers store about a sandbox in the same way:
// its spec without secrets, its lifetimes, names and page tokens.
package record

import (
	"time"

	"github.com/sandgate/sandgate/providers"
)

// Sandbox is the part of a record that every provider has. A provider embeds it
// beside the fields of its own substrate.
type Sandbox struct {
	Spec         providers.Spec `json:"spec"` // without the values of Env
	CreateTime   time.Time      `json:"create_time"`
	LastActivity time.Time      `json:"last_activity"`
}

// New returns the record of a sandbox that is created, or claimed, now.
func New(spec providers.Spec) Sandbox {
	now := time.Now().UTC().Round(0)
	return Sandbox{Spec: spec.WithoutSecrets(), CreateTime: now, LastActivity: now}
}

// Info returns the fields that the record has.
func (s Sandbox) Info(name string) providers.Info {
	return providers.Info{Name: name, Spec: s.Spec, CreateTime: s.CreateTime, LastActivity: s.LastActivity}
}

// Apply changes labels, lifetimes and the time of last activity.
func (s *Sandbox) Apply(c providers.Change) {
	info := s.Info("")
	c.ApplyTo(&info)
	s.Spec, s.LastActivity = info.Spec, info.LastActivity
}
