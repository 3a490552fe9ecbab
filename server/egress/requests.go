package egress

import (
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxPath bounds a path of a rule, in bytes.
const maxPath = 1024

// parseRequests parses methods and paths of a rule.
func (r *rule) parseRequests(methods, paths []string) *RuleError {
	for i, method := range methods {
		if method == "" || len(method) > 32 || strings.Trim(method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != "" {
			return &RuleError{Field: fmt.Sprintf(".methods[%d]", i), Message: `a method is in upper case, such as "GET"`}
		}
	}
	for i, pattern := range paths {
		whole := strings.TrimSuffix(pattern, "/*")
		if !strings.HasPrefix(pattern, "/") || len(pattern) > maxPath || strings.ContainsAny(whole, "*?#%") || ambiguous(whole) {
			return &RuleError{Field: fmt.Sprintf(".paths[%d]", i),
				Message: `a path is such as "/a/b" or "/a/*", without escapes, queries, "//", "." and ".."`}
		}
	}
	r.methods, r.paths = methods, paths
	return nil
}

// limited reports whether the rule allows HTTP requests only.
func (r *rule) limited() bool { return r.selects() || r.secret != nil }

// selects reports whether the rule is for some HTTP requests only.
func (r *rule) selects() bool { return len(r.methods)+len(r.paths) > 0 }

// covers reports whether the rule has the target's name and port.
func (r *rule) covers(target Target) bool {
	return r.ports.has(target.port) && slices.ContainsFunc(r.hosts, func(host pattern) bool { return host.matches(target.host) })
}

// allows reports whether the rule's methods and paths allow a request.
func (r *rule) allows(method, requested string) bool {
	if len(r.methods) > 0 && !slices.Contains(r.methods, method) {
		return false
	}
	return len(r.paths) == 0 || slices.ContainsFunc(r.paths, func(pattern string) bool {
		if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
			return strings.HasPrefix(requested, prefix)
		}
		return requested == pattern
	})
}

// ambiguous reports whether an upstream could take the path for another one: it
// would resolve dots, join slashes, drop what follows a semicolon, or decode what is no
// UTF-8, such as a slash of two bytes.
func ambiguous(decoded string) bool {
	if decoded == "" || decoded == "*" {
		return false
	}
	clean := path.Clean(decoded)
	if strings.HasSuffix(decoded, "/") && clean != "/" {
		clean += "/"
	}
	return clean != decoded || strings.ContainsAny(decoded, "\\;\x00") || !utf8.ValidString(decoded)
}

// reads reports whether each HTTP request to a name is checked or gets a secret.
// Other protocols are refused then.
func (p *Policy) reads(target Target) bool {
	return p != nil && !target.IsAddr() && slices.ContainsFunc(p.layers, func(l layer) bool {
		return l.limits(target) || slices.ContainsFunc(l.limited, func(r rule) bool { return r.secretFor(target) })
	})
}

func (l *layer) limits(target Target) bool {
	return len(l.limited) > 0 && !target.IsAddr() && !l.freeHosts.ports(pattern{name: target.host}).has(target.port)
}

// checkRequest returns a *Denied if a layer allows only other HTTP requests to
// the target.
func (p *Policy) checkRequest(target Target, r *http.Request) *Denied {
	for i := range p.layers {
		l := &p.layers[i]
		limits := l.limits(target)
		if l.selects(target, limits) {
			if problem := unclear(r); problem != "" {
				return target.denied(ReasonRequest, "%s", problem)
			}
		}
		if limits && !l.allowsRequest(target, r.Method, r.URL.Path) {
			return target.denied(ReasonRequest, "no rule of %s allows the request; it needs %s, methods: [%q], paths: [%q]",
				l.name, target.rule(), shown(r.Method), shown(r.URL.Path))
		}
	}
	return nil
}

// selects reports whether methods or paths of a rule decide about requests to the
// target: whether they are allowed, or which secret they get.
func (l *layer) selects(target Target, limits bool) bool {
	return slices.ContainsFunc(l.limited, func(r rule) bool {
		return r.selects() && (limits || r.secret != nil) && r.covers(target)
	})
}

func (l *layer) allowsRequest(target Target, method, requested string) bool {
	return slices.ContainsFunc(l.limited, func(r rule) bool { return r.allows(method, requested) && r.covers(target) })
}

func (p pattern) matches(name string) bool {
	switch {
	case p.name == "":
		return true
	case p.below:
		return strings.HasSuffix(name, "."+p.name)
	}
	return p.name == name
}

// unclear returns why a request has no one method and path.
func unclear(r *http.Request) string {
	for name := range r.Header {
		// Many servers take underscores for hyphens.
		switch strings.ToLower(strings.ReplaceAll(name, "_", "-")) {
		case "x-http-method-override", "x-http-method", "x-method-override":
			return "the header " + shown(name) + " would change the request's method"
		case "x-original-url", "x-rewrite-url":
			return "the header " + shown(name) + " would change the request's path"
		}
	}
	escaped := strings.ToLower(r.URL.EscapedPath())
	if ambiguous(r.URL.Path) || strings.Contains(escaped, "%2f") || strings.Contains(escaped, "%25") {
		return `the path has "//", ".", "..", ";", a backslash, an escaped slash or bytes that are no UTF-8`
	}
	return ""
}
