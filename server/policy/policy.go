// Package policy decides what callers may request: templates, the spec and
// lifetimes of a sandbox, access policies, and the fields of requests. Its
// errors name the field.
package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/egress"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/secret"
)

// Config is the operator's part of a Policy.
type Config struct {
	Templates []Template
	// Access applies to every file call and command of every sandbox.
	Access *sandboxv1.AccessPolicy
	// Secret salts the hashes of environment values.
	Secret []byte
	// EgressGroups are named lists of rules for the network mode PROXY, to which
	// templates and requests refer.
	EgressGroups egress.Groups
	// EgressAnyPublic lets requests allow every public destination where the
	// template has no rules.
	EgressAnyPublic bool
	// Secrets are what rules can put into requests. Nil: none.
	Secrets *secret.Store
	// NoAuthority says that the server cannot end TLS: rules with methods, paths or
	// a secret are refused.
	NoAuthority bool
	// DefaultTTL and DefaultIdleTTL apply to a sandbox that states none; 0: none.
	DefaultTTL, DefaultIdleTTL time.Duration
	// MaxTTL and MaxIdleTTL bound lifetimes; 0: no bound.
	MaxTTL, MaxIdleTTL time.Duration
}

// Policy holds requests to what the operator allows.
type Policy struct {
	cfg       Config
	templates map[string]*Template
}

// New returns a Policy. Templates without limits have none until LimitTemplates.
func New(cfg Config) (*Policy, error) {
	templates, err := indexTemplates(cfg.Templates)
	if err != nil {
		return nil, err
	}
	p := &Policy{cfg: cfg, templates: templates}
	return p, p.checkEgress()
}

// Templates returns the templates, ordered by name.
func (p *Policy) Templates() []*Template {
	list := make([]*Template, 0, len(p.templates))
	for _, name := range slices.Sorted(maps.Keys(p.templates)) {
		list = append(list, p.templates[name])
	}
	return list
}

// Template returns the template of this name, or the default one for "".
func (p *Policy) Template(name string) (*Template, error) {
	if name == "" {
		name = defaultTemplate
	}
	t, ok := p.templates[name]
	if !ok {
		return nil, fault.New(sandboxv1.ErrorReason_ERROR_REASON_TEMPLATE_NOT_FOUND,
			"there is no template %q; GetServerInfo lists them", fault.Bounded(name)).With("template", fault.Bounded(name))
	}
	return t, nil
}

// LimitTemplates applies the provider's default resources to the templates. It
// returns the resources without a limit, by template.
func (p *Policy) LimitTemplates(byDefault providers.Resources) map[string][]string {
	unlimited := make(map[string][]string)
	for name, t := range p.templates {
		if resources := t.limit(byDefault); len(resources) > 0 {
			unlimited[name] = resources
		}
	}
	return unlimited
}

// CheckOptions has the provider check its part of every template.
func (p *Policy) CheckOptions(checker providers.OptionsChecker) error {
	var wrong []error
	for _, t := range p.Templates() {
		if err := checker.CheckOptions(t.ProviderOptions, t.AllowOptions); err != nil {
			wrong = append(wrong, fmt.Errorf("template %q: %w", t.Name, err))
		}
	}
	return errors.Join(wrong...)
}

// NewTTL returns the TTL of an update, or nil if it has none.
func (p *Policy) NewTTL(d *durationpb.Duration) (*time.Duration, error) {
	return newLifetime("ttl", d, p.cfg.MaxTTL)
}

// NewIdleTTL is NewTTL for the idle TTL.
func (p *Policy) NewIdleTTL(d *durationpb.Duration) (*time.Duration, error) {
	return newLifetime("idle_ttl", d, p.cfg.MaxIdleTTL)
}

func newLifetime(field string, d *durationpb.Duration, limit time.Duration) (*time.Duration, error) {
	if d == nil {
		return nil, nil
	}
	value, err := lifetime(field, d, 0, limit)
	return &value, err
}

// lifetime returns the lifetime in force: byDefault if the request has none. 0
// is no end.
func lifetime(field string, d *durationpb.Duration, byDefault, limit time.Duration) (time.Duration, error) {
	if d == nil {
		if limit > 0 && (byDefault == 0 || byDefault > limit) {
			return limit, nil
		}
		return byDefault, nil
	}
	var v Violations
	v.Duration(field, d, limit)
	if limit > 0 && d.AsDuration() == 0 {
		v.Add(field, "must be at most %s; this server allows no sandbox without end", limit)
	}
	return d.AsDuration(), v.Err()
}
