package preview

import (
	"net/http"
	"strings"
	"time"
)

// cookieName begins with __Host-, so browsers accept the cookie only from this host,
// by TLS, for all its paths and for no other host.
const cookieName = "__Host-sandgate"

// cookie returns the cookie of a token. A page that embeds the preview has a cookie
// of its own: partitioned cookies are the only ones that browsers still send there.
func cookie(token string, left time.Duration) *http.Cookie {
	return &http.Cookie{
		Name: cookieName, Value: token, Path: "/", MaxAge: max(int(left.Seconds()), 1),
		Secure: true, HttpOnly: true, SameSite: http.SameSiteNoneMode, Partitioned: true,
	}
}

// stripCookie removes the token's cookie from a request's header and leaves the others
// as they are.
func stripCookie(header http.Header) {
	lines := header["Cookie"]
	var kept []string
	for _, line := range lines {
		var others []string
		for _, one := range strings.Split(line, ";") {
			if name, _, _ := strings.Cut(one, "="); strings.TrimSpace(name) != cookieName {
				others = append(others, one)
			}
		}
		if rest := strings.TrimSpace(strings.Join(others, ";")); rest != "" {
			kept = append(kept, rest)
		}
	}
	if header.Del("Cookie"); len(kept) > 0 {
		header["Cookie"] = kept
	}
}

// stripSetCookie removes cookies of the token's name from a response's header: the
// program must not end the session of a URL. It binds the others to their host: those
// with a Domain would reach the programs of other sandboxes.
func stripSetCookie(header http.Header) {
	var kept []string
	for _, line := range header["Set-Cookie"] {
		if name, _, _ := strings.Cut(line, "="); !strings.EqualFold(strings.TrimSpace(name), cookieName) {
			kept = append(kept, withoutDomain(line))
		}
	}
	if header.Del("Set-Cookie"); len(kept) > 0 {
		header["Set-Cookie"] = kept
	}
}

// withoutDomain returns a Set-Cookie line without the attribute Domain.
func withoutDomain(line string) string {
	pair, attributes, _ := strings.Cut(line, ";")
	kept := []string{pair}
	for _, one := range strings.Split(attributes, ";") {
		if name, _, _ := strings.Cut(one, "="); strings.TrimSpace(one) != "" && !strings.EqualFold(strings.TrimSpace(name), "domain") {
			kept = append(kept, one)
		}
	}
	return strings.Join(kept, ";")
}

// private keeps a response with a token from caches and from other hosts.
func private(header http.Header) {
	header.Set("Cache-Control", "no-store")
	header.Set("Referrer-Policy", "no-referrer")
}
