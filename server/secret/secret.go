// Package secret holds the secrets that the server puts into requests of
// sandboxes. They are bound to tenants, and never enter a sandbox.
package secret

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
	"sigs.k8s.io/yaml"

	"github.com/sandgate/sandgate/server/reload"
)

// anyTenant stands for every tenant in a file of secrets.
const anyTenant = "*"

// maxValue bounds a secret, in bytes: it must fit into a header.
const maxValue = 16 << 10

// ErrNotFound is returned for a name that the tenant has no secret of.
var ErrNotFound = errors.New("secret not found")

var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

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

// entry is one secret of a file: a name, the tenants that may use it, and one
// source.
type entry struct {
	Name    string   `json:"name"`
	Tenants []string `json:"tenants"`
	Value   string   `json:"value,omitempty"`
	Env     string   `json:"env,omitempty"`
	File    string   `json:"file,omitempty"`
}

// Store reads secrets. It is safe for concurrent use.
type Store struct {
	entries *reload.Files[[]entry]
}

// Open reads a YAML file with a list "secrets". Each has a name, the tenants
// that may use it ("*": all), and one of value, env (a variable of the server's
// environment) or file (a path, read at each use, without one trailing newline).
// A changed file is read again; while it is broken, the old one counts.
func Open(log *slog.Logger, path string) (*Store, error) {
	entries, err := reload.Open(log, func(contents [][]byte) ([]entry, error) { return parse(contents[0]) }, path)
	if err != nil {
		return nil, fmt.Errorf("secrets %s: %w", path, err)
	}
	return &Store{entries: entries}, nil
}

// parse returns the entries of a file. No error repeats a part of the file but
// names of secrets: an unknown field may be a misplaced value.
func parse(content []byte) ([]entry, error) {
	var file struct {
		Secrets []entry `json:"secrets"`
	}
	if yaml.UnmarshalStrict(content, &file) != nil {
		return nil, errors.New(`the file is not YAML with a list "secrets" whose entries have name, tenants, and value, env or file`)
	}
	seen := map[[2]string]bool{}
	for i, e := range file.Secrets {
		if !namePattern.MatchString(e.Name) {
			return nil, fmt.Errorf("secrets[%d].name: 1 to 63 letters, digits, '.', '_' and '-'", i)
		}
		if len(e.Tenants) == 0 {
			return nil, fmt.Errorf(`secret %s: it needs tenants, or "*" for all`, e.Name)
		}
		sources := 0
		for _, source := range []string{e.Value, e.Env, e.File} {
			if source != "" {
				sources++
			}
		}
		if sources != 1 {
			return nil, fmt.Errorf("secret %s: it needs one of value, env and file", e.Name)
		}
		for _, tenant := range e.Tenants {
			key := [2]string{tenant, e.Name}
			if seen[key] {
				return nil, fmt.Errorf("secret %s: the tenant %s has two of that name", e.Name, tenant)
			}
			seen[key] = true
		}
	}
	return file.Secrets, nil
}

// Names returns the names that a tenant may use, sorted.
func (s *Store) Names(tenant string) []string {
	var names []string
	for _, e := range s.entries.Get() {
		if e.allows(tenant) {
			names = append(names, e.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (e *entry) allows(tenant string) bool {
	return slices.Contains(e.Tenants, tenant) || slices.Contains(e.Tenants, anyTenant)
}

// Get returns a tenant's secret. A secret of the tenant itself takes precedence
// over one of every tenant. It returns ErrNotFound for another tenant's, too.
// No error repeats a part of the secret.
func (s *Store) Get(tenant, name string) (Value, error) {
	var found *entry
	for _, e := range s.entries.Get() {
		if e.Name == name && e.allows(tenant) && (found == nil || slices.Contains(e.Tenants, tenant)) {
			found = &e
		}
	}
	if found == nil {
		return Value{}, fmt.Errorf("%w: %s", ErrNotFound, name)
	}
	text, err := found.read()
	if err != nil {
		return Value{}, fmt.Errorf("secret %s: %w", name, err)
	}
	if text == "" || len(text) > maxValue || !httpguts.ValidHeaderFieldValue(text) {
		return Value{}, fmt.Errorf("secret %s: its value is empty, larger than %d bytes, or has control characters", name, maxValue)
	}
	return Value{text}, nil
}

func (e *entry) read() (string, error) {
	switch {
	case e.Env != "":
		return os.Getenv(e.Env), nil
	case e.File == "":
		return e.Value, nil
	}
	file, err := os.Open(e.File)
	if err != nil {
		return "", err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxValue+2))
	if err != nil {
		return "", err
	}
	return strings.TrimSuffix(string(bytes.TrimSuffix(content, []byte("\n"))), "\r"), nil
}
