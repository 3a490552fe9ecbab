package egress

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Reason is why a connection is refused. There are few, so that they can be the
// values of a metric's label.
type Reason string

// The reasons of a Denied.
const (
	// ReasonMalformed is a target that is neither a name nor an address, or has
	// no port.
	ReasonMalformed Reason = "malformed"
	// ReasonNoRule is a name or an address that no rule allows at any port.
	ReasonNoRule Reason = "no_rule"
	// ReasonPort is a name or an address that the rules allow at other ports.
	ReasonPort Reason = "port"
	// ReasonAddress is a name that resolves only to addresses that are not public
	// and that no CIDR rule allows.
	ReasonAddress Reason = "address"
	// ReasonServerName is TLS for another name than the asked one, without a
	// name, or with an encrypted name.
	ReasonServerName Reason = "server_name"
	// ReasonHost is an HTTP request for another host than the asked name.
	ReasonHost Reason = "host"
	// ReasonRequest is an HTTP request that the methods and paths of the rules do
	// not allow, or that Requests refuses.
	ReasonRequest Reason = "request"
	// ReasonProtocol is a connection to port 443 that is not TLS, to port 80 that
	// is neither HTTP nor TLS, or one whose first bytes are broken or late.
	// On an intercepted connection it is everything but HTTP.
	ReasonProtocol Reason = "protocol"
)

// maxShown bounds what an error repeats of a program's own text, in bytes.
const maxShown = 128

// Denied is a connection that the rules do not allow. Its text is one line of
// at most 1 KiB that names the target, the cause and the missing rule.
type Denied struct {
	Reason  Reason
	message string
}

// Error returns the whole sentence.
func (d *Denied) Error() string { return d.message }

func newDenied(reason Reason, target, format string, args ...any) *Denied {
	return &Denied{reason, "connection to " + target + " denied: " + fmt.Sprintf(format, args...)}
}

func malformed(host string, port uint32, problem string) error {
	return newDenied(ReasonMalformed, net.JoinHostPort(shown(host), strconv.FormatUint(uint64(port), 10)), "%s", problem)
}

// shown makes a program's text safe for one line of a log or a response.
func shown(text string) string {
	cut := ""
	if len(text) > maxShown {
		text, cut = text[:maxShown], "..."
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' {
			return '?'
		}
		return r
	}, text) + cut
}
