package secret

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// Injection says how one secret gets into requests: by a header that is always
// set, or by a placeholder that the program writes into its headers.
type Injection struct {
	// Secret is the secret's name.
	Secret string
	// Placeholder is a text for which the secret is put into the values of
	// headers, also within the credentials of Basic. 16 to 128 letters, digits,
	// '_' and '-', hard to hit by accident. Empty: by Header.
	Placeholder string
	// Header is set to Prefix and the secret, whatever the program sends. Default:
	// Authorization.
	Header string
	// Prefix precedes the secret, such as "Bearer ".
	Prefix string
	// User makes the header the credentials of Basic, with the secret as the
	// password.
	User string
}

var placeholderPattern = regexp.MustCompile(`^[A-Za-z0-9_-]{16,128}$`)

// errUnencrypted refuses requests in which anyone on the network could read the
// secret.
var errUnencrypted = errors.New("the request needs a secret, which is sent over TLS only; use https")

// Injector puts a tenant's secrets into the requests of one destination. It
// reads each secret when it is used, so a changed one counts at the next
// request.
type Injector struct {
	store      *Store
	tenant     string
	injections []Injection
}

// NewInjector checks the injections. Two for the same header are an error: which
// one counts would be a guess.
func NewInjector(store *Store, tenant string, injections []Injection) (*Injector, error) {
	checked := make([]Injection, 0, len(injections))
	headers, placeholders := map[string]bool{}, map[string]bool{}
	for _, in := range injections {
		if in.Placeholder != "" {
			switch {
			case !placeholderPattern.MatchString(in.Placeholder):
				return nil, fmt.Errorf("secret %s: a placeholder has 16 to 128 letters, digits, '_' and '-'", in.Secret)
			case in.Header != "" || in.Prefix != "" || in.User != "":
				return nil, fmt.Errorf("secret %s: it has a placeholder or a header, not both", in.Secret)
			}
			for other := range placeholders {
				if strings.Contains(other, in.Placeholder) || strings.Contains(in.Placeholder, other) {
					return nil, fmt.Errorf("secret %s: its placeholder is a part of another one", in.Secret)
				}
			}
			placeholders[in.Placeholder] = true
			checked = append(checked, in)
			continue
		}
		if in.Header == "" {
			in.Header = "Authorization"
		}
		in.Header = textproto.CanonicalMIMEHeaderKey(in.Header)
		switch {
		case !httpguts.ValidHeaderFieldName(in.Header) || !httpguts.ValidHeaderFieldValue(in.Prefix+in.User):
			return nil, fmt.Errorf("secret %s: the header or its prefix is malformed", in.Secret)
		case reserved[in.Header]:
			return nil, fmt.Errorf("secret %s: the header %s cannot carry a secret", in.Secret, in.Header)
		case in.User != "" && (in.Prefix != "" || strings.Contains(in.User, ":")):
			return nil, fmt.Errorf("secret %s: a user has no colon, and no prefix beside it", in.Secret)
		case headers[in.Header]:
			return nil, fmt.Errorf("secret %s: another secret is set in the header %s", in.Secret, in.Header)
		}
		headers[in.Header] = true
		checked = append(checked, in)
	}
	return &Injector{store: store, tenant: tenant, injections: checked}, nil
}

// reserved are headers that proxies drop or that frame the message.
var reserved = map[string]bool{
	"Connection": true, "Content-Length": true, "Host": true, "Keep-Alive": true, "Proxy-Authorization": true,
	"Proxy-Connection": true, "Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
}

// Request puts the secrets into the headers of r. It refuses a request that
// needs a secret and is not encrypted, and one with a placeholder outside of its
// headers' values. It does not look into bodies.
func (j *Injector) Request(r *http.Request, encrypted bool) error {
	for _, in := range j.injections {
		if in.Placeholder == "" {
			if err := j.set(r, in, encrypted); err != nil {
				return err
			}
		} else if err := j.replace(r, in, encrypted); err != nil {
			return err
		}
	}
	return nil
}

func (j *Injector) set(r *http.Request, in Injection, encrypted bool) error {
	if !encrypted {
		return errUnencrypted
	}
	value, err := j.store.Get(j.tenant, in.Secret)
	if err != nil {
		return public(in.Secret)
	}
	text := in.Prefix + value.Reveal()
	if in.User != "" {
		text = basic(in.User + ":" + value.Reveal())
	}
	r.Header[in.Header] = []string{text}
	return nil
}

// replace changes no header before it is clear that all of them can be changed.
func (j *Injector) replace(r *http.Request, in Injection, encrypted bool) error {
	if strings.Contains(r.URL.Path+" "+r.URL.RawQuery+" "+r.Host, in.Placeholder) {
		return fmt.Errorf("the placeholder of secret %s is allowed in headers only, not in the URL", in.Secret)
	}
	var value Value
	for name, values := range r.Header {
		if strings.Contains(strings.ToLower(name), strings.ToLower(in.Placeholder)) {
			return fmt.Errorf("the placeholder of secret %s is allowed in the values of headers only", in.Secret)
		}
		for i, old := range values {
			credentials, isBasic := basicCredentials(old)
			if !strings.Contains(old, in.Placeholder) && !strings.Contains(credentials, in.Placeholder) {
				continue
			}
			if !encrypted {
				return errUnencrypted
			}
			if value.text == "" {
				var err error
				if value, err = j.store.Get(j.tenant, in.Secret); err != nil {
					return public(in.Secret)
				}
			}
			if isBasic {
				values[i] = basic(strings.ReplaceAll(credentials, in.Placeholder, value.Reveal()))
			} else {
				values[i] = strings.ReplaceAll(old, in.Placeholder, value.Reveal())
			}
		}
	}
	return nil
}

// public is what a program reads when a secret cannot be had: neither the path
// of its file, nor whether another tenant has it.
func public(name string) error {
	return fmt.Errorf("the server cannot read secret %s", name)
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

// Response redacts the headers of a response that have a secret in them: as it
// is, escaped as in a URL, or anywhere in base64. Bodies are left as they are.
func (j *Injector) Response(header http.Header) {
	for _, in := range j.injections {
		value, err := j.store.Get(j.tenant, in.Secret)
		if err != nil {
			continue
		}
		forms := value.forms()
		for _, values := range header {
			for i, text := range values {
				if slices.ContainsFunc(forms, func(form string) bool { return strings.Contains(text, form) }) {
					values[i] = redacted
				}
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
