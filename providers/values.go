package providers

import (
	"encoding/json"
	"maps"
	"time"
)

// State is what can be done with a sandbox.
type State int

// The states of a sandbox.
const (
	StateUnknown State = iota
	StateCreating
	StateActive
	StateSuspended
	StateDeleting
	StateFailed
)

// String returns the state's name in lower case.
func (s State) String() string {
	switch s {
	case StateCreating:
		return "creating"
	case StateActive:
		return "active"
	case StateSuspended:
		return "suspended"
	case StateDeleting:
		return "deleting"
	case StateFailed:
		return "failed"
	default:
		return "unknown"
	}
}

// Failure is the cause of a sandbox that ended by itself.
type Failure int

// The failures that the server distinguishes.
const (
	FailureUnknown Failure = iota
	// FailureOutOfMemory: the substrate killed it because it ran out of memory.
	FailureOutOfMemory
)

// Ending is how an incarnation of a sandbox ended.
type Ending struct {
	// Known is true when the substrate has reported the end: no process is left.
	Known bool
	// Pending is true when the substrate has not noticed an end yet and may report
	// one in a moment.
	Pending bool
	// Message describes the end to people. Failure is its cause.
	Message string
	Failure Failure
}

// NetworkMode is how much network a sandbox has.
type NetworkMode int

// The network modes. The server never passes NetworkUnset to a provider.
const (
	NetworkUnset NetworkMode = iota
	NetworkNone
	NetworkProxy
	NetworkFull
)

// String returns the mode's name in lower case.
func (m NetworkMode) String() string {
	switch m {
	case NetworkNone:
		return "none"
	case NetworkProxy:
		return "proxy"
	case NetworkFull:
		return "full"
	default:
		return "unset"
	}
}

// Resources are upper limits; 0 means no limit.
type Resources struct {
	MemoryBytes  int64 `json:"memory_bytes,omitempty"`
	CPUMillis    int32 `json:"cpu_millis,omitempty"` // thousandths of a core
	MaxProcesses int32 `json:"max_processes,omitempty"`
	DiskBytes    int64 `json:"disk_bytes,omitempty"`
}

// Spec describes a sandbox to be made. Providers store it with the sandbox.
type Spec struct {
	// Tenant and ID are the caller's names for the sandbox. The provider stores
	// them, and Principal, and never interprets them.
	Tenant string `json:"tenant"`
	ID     string `json:"id"`
	// Principal is the name of the caller that asked for it, and empty without
	// authentication.
	Principal string `json:"principal,omitempty"`
	// Hash identifies the request; equal hashes mean the same spec.
	Hash string `json:"hash"`
	// Template is the name of the template it is made from.
	Template string `json:"template"`

	Image            string            `json:"image,omitempty"`
	Resources        Resources         `json:"resources"`
	Env              map[string]string `json:"env,omitempty"`
	WorkingDirectory string            `json:"working_directory,omitempty"`
	Network          NetworkMode       `json:"network"`
	Command          []string          `json:"command,omitempty"`
	Labels           map[string]string `json:"labels,omitempty"`
	TTL              time.Duration     `json:"ttl,omitempty"`      // 0: none
	IdleTTL          time.Duration     `json:"idle_ttl,omitempty"` // 0: none

	// Access is the sandbox's access policy as the server encodes it; the
	// provider stores it and gives it back.
	Access []byte `json:"access,omitempty"`
	// Egress holds the sandbox's own rules for NetworkProxy, likewise.
	Egress []byte `json:"egress,omitempty"`
	// TemplateOptions is the provider's part of the template, and Options the
	// request's provider_options, which the server has checked against it. Both
	// are JSON objects or nil; the provider decodes them strictly.
	TemplateOptions json.RawMessage `json:"template_options,omitempty"`
	Options         json.RawMessage `json:"options,omitempty"`
}

// WithoutSecrets returns the spec without the values of Env, as providers store
// it.
func (s Spec) WithoutSecrets() Spec {
	if s.Env != nil {
		env := make(map[string]string, len(s.Env))
		for k := range s.Env {
			env[k] = ""
		}
		s.Env = env
	}
	return s
}

// Info is a sandbox as the substrate knows it.
type Info struct {
	// Name is the substrate's name for it.
	Name string
	// Spec is what it was made from, with labels and lifetimes as they are now
	// and without the values of Env.
	Spec Spec
	// Incarnation changes when disk and processes were lost.
	Incarnation string
	State       State
	// Message describes to people why it is in this state. It may be empty.
	Message string
	// Failure is why a sandbox in StateFailed ended, if the substrate reports it.
	Failure      Failure
	CreateTime   time.Time
	LastActivity time.Time
	// ImageDigest is the digest of the image that it runs, such as "sha256:…". Empty:
	// none, or unknown.
	ImageDigest string
	// Transport is how the agent of an active sandbox is reached from here, such
	// as "unix", "exec" or "pod-ip".
	Transport string
	// FromPool is true when it was claimed from a pool of started sandboxes.
	FromPool bool
	// Created is true in the answer of the Create call that made it.
	Created bool
	// Runtime, Unprivileged, ReadOnlySystem and NotEnforced describe the
	// isolation in force.
	Runtime        string
	Unprivileged   bool
	ReadOnlySystem bool
	NotEnforced    []string
}

// Status describes the sandbox's state to people, with its message.
func (i Info) Status() string {
	if i.Message == "" {
		return i.State.String()
	}
	return i.State.String() + ": " + i.Message
}

// ExpireTime returns when the sandbox expires without further activity, and the
// zero time if it never does.
func (i Info) ExpireTime() time.Time {
	var t time.Time
	if i.Spec.TTL > 0 {
		t = i.CreateTime.Add(i.Spec.TTL)
	}
	if i.Spec.IdleTTL > 0 {
		if idle := i.LastActivity.Add(i.Spec.IdleTTL); t.IsZero() || idle.Before(t) {
			t = idle
		}
	}
	return t
}

// Query selects sandboxes.
type Query struct {
	// Tenant selects one tenant's sandboxes. Empty: all tenants'.
	Tenant string
	// Labels must all be present.
	Labels map[string]string
	// Network selects by network mode. NetworkUnset: all.
	Network NetworkMode
	// States selects by state. Empty: all.
	States []State
	// DueBy selects those whose ExpireTime is not after it. Zero: all. A provider
	// should read no more of a sandbox than that takes.
	DueBy time.Time
	// Limit is the most to return, at least 1.
	Limit int
	// Token is Page.Next of the previous page of the same query.
	Token string
}

// Matches reports whether a sandbox fits the query's filters.
func (q Query) Matches(i Info) bool {
	if q.Tenant != "" && q.Tenant != i.Spec.Tenant {
		return false
	}
	if q.Network != NetworkUnset && q.Network != i.Spec.Network {
		return false
	}
	for k, v := range q.Labels {
		if got, ok := i.Spec.Labels[k]; !ok || got != v {
			return false
		}
	}
	if !q.DueBy.IsZero() {
		if end := i.ExpireTime(); end.IsZero() || end.After(q.DueBy) {
			return false
		}
	}
	if len(q.States) == 0 {
		return true
	}
	for _, s := range q.States {
		if s == i.State {
			return true
		}
	}
	return false
}

// Page is a part of a list.
type Page struct {
	Sandboxes []Info
	// Next is empty after the last page.
	Next string
}

// Change is a partial update. Nil and zero fields leave their values unchanged.
type Change struct {
	SetLabels    map[string]string
	RemoveLabels []string
	TTL          *time.Duration
	IdleTTL      *time.Duration
	Egress       *[]byte
	LastActivity time.Time
}

// ApplyTo changes a sandbox's values in place.
func (c Change) ApplyTo(i *Info) {
	if len(c.SetLabels) > 0 || len(c.RemoveLabels) > 0 {
		labels := maps.Clone(i.Spec.Labels)
		if labels == nil {
			labels = make(map[string]string, len(c.SetLabels))
		}
		for _, k := range c.RemoveLabels {
			delete(labels, k)
		}
		maps.Copy(labels, c.SetLabels)
		i.Spec.Labels = labels
	}
	if c.TTL != nil {
		i.Spec.TTL = *c.TTL
	}
	if c.IdleTTL != nil {
		i.Spec.IdleTTL = *c.IdleTTL
	}
	if c.Egress != nil {
		i.Spec.Egress = *c.Egress
	}
	if c.LastActivity.After(i.LastActivity) {
		i.LastActivity = c.LastActivity
	}
}

// Condition restricts a Delete.
type Condition struct {
	// Incarnation is the one to delete. Empty: any.
	Incarnation string
	// IdleSince is the last activity that the caller has seen. A sandbox with a
	// later LastActivity is in use again and stays. Zero: any.
	IdleSince time.Time
}

// InUse reports whether a sandbox with this last activity must stay.
func (c Condition) InUse(lastActivity time.Time) bool {
	return !c.IdleSince.IsZero() && lastActivity.After(c.IdleSince)
}

// CapabilityNetworkProxy is the capability of a provider that makes sandboxes
// with NetworkProxy: without a route, and with the agent told to open its proxy.
const CapabilityNetworkProxy = "network_proxy"

// AddressesNeedProxy is in the detail of the protection "network" where programs of a
// sandbox with NetworkProxy do not reach addresses without a name directly.
const AddressesNeedProxy = "addresses without a name need the proxy"

// Description is what a provider can do and enforces where it runs.
type Description struct {
	// Name is the provider's name, such as "local".
	Name string
	// Runtime is the mechanism of isolation, such as "runc".
	Runtime string
	// Capabilities are the provider's own, such as "images".
	Capabilities []string
	// Enforcement lists all protections, enforced or not.
	Enforcement []Enforcement
	// DefaultResources are the limits of a template without limits of its own. Each
	// limit that the provider enforces must have a default.
	DefaultResources Resources
	// Creations is the number of concurrent creations at which the provider is
	// fastest. 0: any number.
	Creations int
}

// Enforcement is one protection.
type Enforcement struct {
	Name     string
	Enforced bool
	// Detail describes how it is enforced, or why it is not.
	Detail string
}

// NotEnforced returns the requested limits that cannot be enforced, each with the
// reason. Their names in limits are memory, cpu, processes and disk.
func (r Resources) NotEnforced(limits []Enforcement) []string {
	requested := map[string]bool{
		"memory": r.MemoryBytes > 0, "cpu": r.CPUMillis > 0, "processes": r.MaxProcesses > 0, "disk": r.DiskBytes > 0,
	}
	var out []string
	for _, e := range limits {
		if requested[e.Name] && !e.Enforced {
			out = append(out, e.Name+": "+e.Detail)
		}
	}
	return out
}

// Pool is a number of started sandboxes of one template.
type Pool struct {
	// Template is the pool's name.
	Template string
	// Spec is the one of a request that sets only the template. Tenant, ID, Hash
	// and Labels are empty.
	Spec Spec
	// Target is how many unclaimed sandboxes to keep, at least 1.
	Target int
}

// PoolStatus counts a pool's sandboxes. Available ones are started and unclaimed,
// active ones are claimed, and the total includes both and those being started.
// Target is the wanted number of available ones.
type PoolStatus struct {
	Available, Active, Total, Target int
}

// Probe is the result of a check of the substrate, also of one that failed.
type Probe struct {
	// FreeBytes is the free space of the file system that holds the provider's
	// sandboxes, and -1 if the provider cannot see one.
	FreeBytes int64
}
