package secret

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/sandgate/sandgate/server/egress"
)

// errUnencrypted refuses requests in which anyone on the network could read the
// secret.
var errUnencrypted = errors.New("the request needs a secret, which is sent over TLS only; use https")

// Injector puts a tenant's secrets into requests. It reads each secret when it is
// used, so a changed one counts at the next request.
type Injector struct {
	store  *Store
	tenant string
	log    *slog.Logger
}

var _ egress.Secrets = (*Injector)(nil)

// NewInjector returns the injector of a tenant. It logs why a secret cannot be
// read, which a program does not learn.
func NewInjector(store *Store, tenant string, log *slog.Logger) *Injector {
	return &Injector{store: store, tenant: tenant, log: log}
}

// maxPlaceholders bounds what placeholders make of a request's header: a secret may
// be a thousand times as long.
const maxPlaceholders = 4

// Put implements egress.Secrets. It refuses a request with a placeholder outside
// of its headers' values, or with many, and does not look into bodies.
func (j *Injector) Put(r *http.Request, host string, encrypted bool, given, all []egress.Secret) (func(http.Header), error) {
	// A placeholder may be a part of a longer one.
	ordered := slices.SortedStableFunc(slices.Values(given), func(a, b egress.Secret) int {
		return cmp.Compare(len(b.Placeholder), len(a.Placeholder))
	})
	known := map[string]Value{}
	placeholders := 0
	for _, s := range ordered {
		found, err := occurrences(r, s)
		if err != nil {
			return nil, err
		}
		if s.Placeholder != "" && found == 0 {
			continue
		}
		if placeholders += found; placeholders > maxPlaceholders {
			return nil, fmt.Errorf("the request has more than %d placeholders of secrets in its headers", maxPlaceholders)
		}
		if !encrypted {
			return nil, errUnencrypted
		}
		value, err := j.get(s.Name, host)
		if err != nil {
			return nil, err
		}
		place(r, s, value)
		known[s.Name] = value
	}
	for _, s := range all {
		if _, ok := known[s.Name]; ok {
			continue
		}
		// One that cannot be read now is in a response only if it could be read before.
		if value, err := j.get(s.Name, host); err == nil {
			known[s.Name] = value
		}
	}
	if len(known) == 0 {
		return nil, nil
	}
	values := slices.Collect(maps.Values(known))
	return func(header http.Header) { redact(values, header) }, nil
}

// get reads a secret. The program reads the error's text, which says less than the log.
func (j *Injector) get(name, host string) (Value, error) {
	value, err := j.store.Get(j.tenant, name, host)
	if err != nil {
		j.store.logged.Do(func() {
			j.log.Warn("a secret cannot be read for a request", "tenant", j.tenant, "secret", name, "host", host, "error", err)
		})
		return Value{}, fmt.Errorf("the server cannot read secret %s for %s", name, host)
	}
	return value, nil
}

// occurrences counts the secret's placeholder in the values of the headers.
func occurrences(r *http.Request, s egress.Secret) (int, error) {
	if s.Placeholder == "" {
		return 0, nil
	}
	if strings.Contains(r.URL.Path+" "+r.URL.RawQuery+" "+r.Host, s.Placeholder) {
		return 0, fmt.Errorf("the placeholder of secret %s is allowed in headers only, not in the URL", s.Name)
	}
	found := 0
	for name, values := range r.Header {
		if strings.Contains(strings.ToLower(name), strings.ToLower(s.Placeholder)) {
			return 0, fmt.Errorf("the placeholder of secret %s is allowed in the values of headers only", s.Name)
		}
		for _, value := range values {
			credentials, _ := basicCredentials(value)
			found += strings.Count(value, s.Placeholder) + strings.Count(credentials, s.Placeholder)
		}
	}
	return found, nil
}

// place puts a secret into the headers.
func place(r *http.Request, s egress.Secret, value Value) {
	if s.Placeholder == "" {
		text := s.Prefix + value.Reveal()
		if s.User != "" {
			text = basic(s.User + ":" + value.Reveal())
		}
		r.Header[s.Header] = []string{text}
		return
	}
	for _, values := range r.Header {
		for i, old := range values {
			credentials, isBasic := basicCredentials(old)
			if isBasic && strings.Contains(credentials, s.Placeholder) {
				values[i] = basic(strings.ReplaceAll(credentials, s.Placeholder, value.Reveal()))
			} else {
				values[i] = strings.ReplaceAll(old, s.Placeholder, value.Reveal())
			}
		}
	}
}

func basic(credentials string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(credentials))
}

func basicCredentials(header string) (string, bool) {
	scheme, encoded, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Basic") {
		return "", false
	}
	decoded, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
	return string(decoded), err == nil
}

// redacted stands for a header of a response that has a secret in it.
const redacted = "[redacted]"

// redact redacts the headers of a response that have one of the secrets in them:
// as it is, escaped as in a URL, or anywhere in base64. Bodies are left as they
// are.
func redact(values []Value, header http.Header) {
	var forms []string
	for _, v := range values {
		forms = append(forms, v.forms()...)
	}
	for _, texts := range header {
		for i, text := range texts {
			if slices.ContainsFunc(forms, func(form string) bool { return strings.Contains(text, form) }) {
				texts[i] = redacted
			}
		}
	}
}

// forms returns the texts in which the secret is found.
func (v Value) forms() []string {
	// A shorter part of base64 may be there by chance.
	const shortest = 8
	forms := []string{v.text, url.QueryEscape(v.text), url.PathEscape(v.text)}
	for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for before := range 3 {
			// The characters that hold bits of the secret alone.
			from := (before*8 + 5) / 6
			to := (before + len(v.text)) * 8 / 6
			if to-from >= shortest {
				forms = append(forms, encoding.EncodeToString(append(make([]byte, before), v.text...))[from:to])
			}
		}
	}
	return forms
}
