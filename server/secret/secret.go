// Package secret holds the secrets that the server puts into requests of
// sandboxes. They are bound to tenants and hosts, and never enter a sandbox.
package secret

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/time/rate"

	"github.com/sandgate/sandgate/server/egress"
)

// anyTenant stands for every tenant.
const anyTenant = "*"

// Bounds of a secret, in bytes: it must fit into a header, and a short one would be
// found, and redacted, in responses by chance.
const (
	minValue = 8
	maxValue = 16 << 10
)

// logInterval bounds what programs can make the server log about secrets that
// cannot be read.
const logInterval = 10 * time.Second

// ErrNotFound is returned for a name that the tenant has no secret of, or none for
// the host.
var ErrNotFound = errors.New("secret not found")

// Value is a secret. It prints and encodes as "[secret]"; Reveal returns it.
type Value struct{ text string }

// Reveal returns the secret itself.
func (v Value) Reveal() string { return v.text }

// String returns "[secret]".
func (v Value) String() string { return "[secret]" }

// GoString returns "[secret]".
func (v Value) GoString() string { return v.String() }

// MarshalText returns "[secret]".
func (v Value) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// Entry is where one secret is, and who may use it.
type Entry struct {
	Name string
	// Tenants are those that may use it; "*": all.
	Tenants []string
	// Hosts are those that may get it, as in a rule.
	Hosts []string
	// Env is a variable of the server's environment, and File a path, which is read
	// at each use. Exactly one is set.
	Env, File string

	hosts egress.HostSet
}

// Source returns "env" or "file".
func (e *Entry) Source() string {
	if e.Env != "" {
		return "env"
	}
	return "file"
}

// Store reads secrets. It is safe for concurrent use.
type Store struct {
	entries []Entry
	logged  rate.Sometimes
}

// New checks the entries. It does not read the secrets.
func New(entries []Entry) (*Store, error) {
	s := &Store{entries: slices.Clone(entries), logged: rate.Sometimes{Interval: logInterval}}
	seen := map[[2]string]bool{}
	for i := range s.entries {
		e := &s.entries[i]
		if !egress.ValidSecretName(e.Name) {
			return nil, fmt.Errorf("secrets[%d].name: 1 to 63 letters, digits, '.', '_' and '-'", i)
		}
		switch {
		case len(e.Tenants) == 0:
			return nil, fmt.Errorf(`secret %s: it needs tenants, or "*" for all`, e.Name)
		case len(e.Hosts) == 0:
			return nil, fmt.Errorf(`secret %s: it needs the hosts that may get it, or "*" for all`, e.Name)
		case (e.Env == "") == (e.File == ""):
			return nil, fmt.Errorf("secret %s: it needs one of env and file", e.Name)
		}
		var err error
		if e.hosts, err = egress.ParseHosts(e.Hosts); err != nil {
			return nil, fmt.Errorf("secret %s: %w", e.Name, err)
		}
		for _, tenant := range e.Tenants {
			key := [2]string{tenant, e.Name}
			if seen[key] {
				return nil, fmt.Errorf("secret %s: the tenant %s has two of that name", e.Name, tenant)
			}
			seen[key] = true
		}
	}
	return s, nil
}

// List returns the secrets that a tenant may use, ordered by name.
func (s *Store) List(tenant string) []Entry {
	var list []Entry
	for _, e := range s.entries {
		if found := s.find(tenant, e.Name); found != nil && !slices.ContainsFunc(list, func(o Entry) bool { return o.Name == e.Name }) {
			list = append(list, *found)
		}
	}
	slices.SortFunc(list, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// find returns the tenant's own secret, else that of every tenant, or nil.
func (s *Store) find(tenant, name string) *Entry {
	var found *Entry
	for i := range s.entries {
		e := &s.entries[i]
		if e.Name != name {
			continue
		}
		if slices.Contains(e.Tenants, tenant) {
			return e
		}
		if slices.Contains(e.Tenants, anyTenant) {
			found = e
		}
	}
	return found
}

// Check returns why a rule of the tenant cannot put the secret into requests for
// these hosts, empty if it can. For the tenant "", it looks at those of all.
func (s *Store) Check(tenant, name string, hosts []string) string {
	var candidates []*Entry
	for i := range s.entries {
		if e := &s.entries[i]; tenant == "" && e.Name == name {
			candidates = append(candidates, e)
		}
	}
	if e := s.find(tenant, name); tenant != "" && e != nil {
		candidates = []*Entry{e}
	}
	if len(candidates) == 0 {
		return fmt.Sprintf("there is no secret %s that this tenant may use", name)
	}
	problem := ""
	for _, e := range candidates {
		at := slices.IndexFunc(hosts, func(host string) bool { return !e.hosts.Has(host) })
		if at < 0 {
			return ""
		}
		problem = fmt.Sprintf("the secret %s may not be sent to %s; its hosts are %s", name, hosts[at], strings.Join(e.Hosts, ", "))
	}
	return problem
}

// Get returns a tenant's secret for a host. It returns ErrNotFound for another
// tenant's, too. No error repeats a part of the secret.
func (s *Store) Get(tenant, name, host string) (Value, error) {
	e := s.find(tenant, name)
	if e == nil || !e.hosts.Has(host) {
		return Value{}, fmt.Errorf("%w: %s", ErrNotFound, name)
	}
	text, err := e.read()
	if err != nil {
		return Value{}, fmt.Errorf("secret %s: %w", name, err)
	}
	if len(text) < minValue || len(text) > maxValue || !httpguts.ValidHeaderFieldValue(text) {
		return Value{}, fmt.Errorf("secret %s: its value has less than %d or more than %d bytes, or control characters", name, minValue, maxValue)
	}
	return Value{text}, nil
}

func (e *Entry) read() (string, error) {
	if e.Env != "" {
		return os.Getenv(e.Env), nil
	}
	file, err := os.Open(e.File)
	if err != nil {
		return "", err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxValue+3))
	if err != nil {
		return "", err
	}
	return strings.TrimSuffix(string(bytes.TrimSuffix(content, []byte("\n"))), "\r"), nil
}
