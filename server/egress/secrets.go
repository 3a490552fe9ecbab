package egress

import (
	"fmt"
	"net/http"
	"net/textproto"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Secret is how a rule puts a secret into requests: in a header that is always
// set, or in place of a placeholder that the program writes into its headers.
type Secret struct {
	Name string
	// Placeholder is replaced in the values of headers. Empty: by Header.
	Placeholder string
	// Header is set to Prefix and the secret, or to the credentials of Basic if
	// User is not empty.
	Header, Prefix, User string
}

// Secrets puts secrets into requests. It must be safe for concurrent use.
type Secrets interface {
	// Put puts the secrets of given into the header of a request for host. Without
	// encryption it must refuse a request that needs one. The program reads the
	// error's text. redact removes them, and those of all, from the header of a
	// response, or from its trailers; nil if there are none: an upstream may have kept
	// a secret of an earlier request.
	Put(r *http.Request, host string, encrypted bool, given, all []Secret) (redact func(http.Header), err error)
}

var (
	secretName  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
	placeholder = regexp.MustCompile(`^[A-Za-z0-9_-]{16,128}$`)
)

// reserved are headers that proxies drop or that frame the message.
var reserved = map[string]bool{
	"Connection": true, "Content-Length": true, "Expect": true, "Host": true, "Keep-Alive": true, "Proxy-Authorization": true,
	"Proxy-Connection": true, "Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
}

const maxSecretText = 256 // of a header, prefix or user, in bytes

// parseSecret checks the form of a rule's secret.
func parseSecret(from *sandboxv1.EgressSecret) (*Secret, *RuleError) {
	if from == nil {
		return nil, nil
	}
	wrong := func(field, format string, args ...any) (*Secret, *RuleError) {
		return nil, &RuleError{Field: ".secret." + field, Message: fmt.Sprintf(format, args...)}
	}
	s := &Secret{
		Name: from.GetName(), Placeholder: from.GetPlaceholder(),
		Header: from.GetHeader(), Prefix: from.GetPrefix(), User: from.GetUser(),
	}
	if !ValidSecretName(s.Name) {
		return wrong("name", "1 to 63 letters, digits, '.', '_' and '-'")
	}
	if s.Placeholder != "" {
		switch {
		case !placeholder.MatchString(s.Placeholder):
			return wrong("placeholder", "a placeholder has 16 to 128 letters, digits, '_' and '-'")
		case s.Header+s.Prefix+s.User != "":
			return wrong("placeholder", "a secret has a placeholder, or a header, prefix or user, not both")
		}
		return s, nil
	}
	switch {
	case s.User != "" && s.Prefix != "":
		return wrong("prefix", "a secret has a user or a prefix, not both")
	case strings.Contains(s.User, ":") || len(s.User) > maxSecretText || !httpguts.ValidHeaderFieldValue(s.User):
		return wrong("user", "a user has at most %d bytes, no colon and no control characters", maxSecretText)
	case len(s.Prefix) > maxSecretText || !httpguts.ValidHeaderFieldValue(s.Prefix):
		return wrong("prefix", "a prefix has at most %d bytes and no control characters", maxSecretText)
	}
	if s.Header == "" {
		s.Header = "Authorization"
		if s.Prefix == "" && s.User == "" {
			s.Prefix = "Bearer "
		}
	}
	s.Header = textproto.CanonicalMIMEHeaderKey(s.Header)
	if len(s.Header) > maxSecretText || !httpguts.ValidHeaderFieldName(s.Header) || reserved[s.Header] {
		return wrong("header", "the header %s cannot carry a secret", shown(s.Header))
	}
	return s, nil
}

// ValidSecretName reports whether the name of a secret is well formed.
func ValidSecretName(name string) bool { return secretName.MatchString(name) }

// secretFor reports whether the rule's secret is for connections to the target.
func (r *rule) secretFor(target Target) bool { return r.secret != nil && r.covers(target) }

// secrets returns the secrets of a request. Where two set one header, that of the
// narrowest layer counts, and then the first.
func (p *Policy) secrets(target Target, r *http.Request) []Secret {
	var found []Secret
	for _, l := range slices.Backward(p.layers) {
		for _, one := range l.limited {
			if !one.secretFor(target) || !one.allows(r.Method, r.URL.Path) {
				continue
			}
			same := func(s Secret) bool { return s.Header == one.secret.Header && s.Placeholder == one.secret.Placeholder }
			if !slices.ContainsFunc(found, same) {
				found = append(found, *one.secret)
			}
		}
	}
	return found
}

// allSecrets returns the secrets of all requests for the target.
func (p *Policy) allSecrets(target Target) []Secret {
	var found []Secret
	for _, l := range p.layers {
		for _, one := range l.limited {
			if one.secretFor(target) {
				found = append(found, *one.secret)
			}
		}
	}
	return found
}

// HostSet is a set of host names, written as in rules.
type HostSet struct{ table hostTable }

// ParseHosts parses the hosts that a secret is for.
func ParseHosts(hosts []string) (HostSet, error) {
	var set HostSet
	for _, host := range hosts {
		p, problem := parsePattern(host)
		if problem != "" {
			return HostSet{}, fmt.Errorf("host %q: %s", shown(host), problem)
		}
		set.table.put(p, ports{every: true})
	}
	return set, nil
}

// Has reports whether the set has every name that the host stands for: a name, a
// wildcard, or "*".
func (s HostSet) Has(host string) bool {
	p, problem := parsePattern(host)
	return problem == "" && !s.table.ports(p).empty()
}

// SecretUse is a secret in a list of rules.
type SecretUse struct {
	// Field is the field of the rule, such as "[2]".
	Field, Name string
	Hosts       []string
}

// SecretUses returns the secrets that rules name, also those of their groups.
func SecretUses(layer string, groups Groups, rules []*sandboxv1.EgressRule) ([]SecretUse, error) {
	parsed, err := parseRules(layer, groups, rules)
	if err != nil {
		return nil, err
	}
	var uses []SecretUse
	for _, r := range parsed {
		if r.secret == nil {
			continue
		}
		use := SecretUse{Field: r.field, Name: r.secret.Name}
		for _, host := range r.hosts {
			use.Hosts = append(use.Hosts, host.String())
		}
		uses = append(uses, use)
	}
	return uses, nil
}

// ReadsRequests reports whether a rule needs the server to end TLS.
func ReadsRequests(groups Groups, rules []*sandboxv1.EgressRule) bool {
	return slices.ContainsFunc(rules, func(r *sandboxv1.EgressRule) bool {
		return len(r.GetMethods())+len(r.GetPaths()) > 0 || r.GetSecret() != nil ||
			r.GetGroup() != "" && ReadsRequests(nil, groups[r.GetGroup()])
	})
}
