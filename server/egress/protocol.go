package egress

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"sync/atomic"
)

// protocol is what a program speaks, by its first bytes.
type protocol int

const (
	unknown protocol = iota // more bytes are needed
	speaksTLS
	speaksHTTP
	speaksOther
)

// maxLine bounds a request line and what stands before it.
const maxLine = 64 << 10

// opening reads a program's first bytes until they show the protocol.
type opening struct {
	from io.Reader
	read []byte
	// settled is set when the protocol no longer matters, since the upstream has
	// spoken first.
	settled atomic.Bool
	started func() // called before the first read returns
}

// run returns the protocol; unknown if the bytes end or reach maxLine before
// they show it.
func (o *opening) run() (protocol, error) {
	buf := make([]byte, 4096)
	for {
		n, err := o.from.Read(buf)
		if n > 0 && len(o.read) == 0 {
			o.started()
		}
		o.read = append(o.read, buf[:n]...)
		spoken := classify(o.read)
		switch {
		case spoken != unknown || o.settled.Load():
			return spoken, nil
		case err != nil:
			return unknown, err
		case len(o.read) >= maxLine:
			return unknown, nil
		}
	}
}

// classify tells TLS and HTTP from other protocols. It errs on the side of TLS
// and HTTP, whose parsers are strict: what a lenient upstream could take for one
// of them must not pass as another protocol.
func classify(first []byte) protocol {
	if len(first) == 0 {
		return unknown
	}
	if couldBeTLS := first[0] >= 0x14 && first[0] <= 0x18; couldBeTLS {
		switch {
		case len(first) == 1:
			return unknown
		case first[1] < 0x10: // the major version; it is 3, but crypto/tls takes others
			return speaksTLS
		}
		return speaksOther
	}
	if couldBeSSL2 := first[0]&0x80 != 0; couldBeSSL2 {
		switch {
		case len(first) < 4:
			return unknown
		case first[2] == 1 && first[3] == 3: // a ClientHello in the framing of SSL 2.0
			return speaksTLS
		case !isBlank(first[0]):
			return speaksOther
		}
	}
	return classifyText(first)
}

// methods are those after which a request line may go on behind a control
// character. Other protocols send such bytes, too, and then wait for an answer
// instead of ending the line.
var methods = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "PRI"}

// classifyText looks for a request line, after empty lines and blanks.
func classifyText(first []byte) protocol {
	line := trimBlanks(first)
	line, _, complete := bytes.Cut(line, []byte("\n"))
	method := 0
	for method < len(line) && isToken(line[method]) {
		method++
	}
	rest := line[method:]
	text := rest
	isRequest := slices.Contains(methods, strings.ToUpper(string(line[:min(method, 8)])))
	control := -1
	if !isRequest {
		control = bytes.IndexFunc(rest, func(r rune) bool { return r < ' ' && !isBlank(byte(r)) })
	}
	if control >= 0 {
		text = rest[:control]
	}
	switch {
	case len(line) == 0 && !complete:
		return unknown
	case method == 0 || len(rest) == 0 && complete:
		return speaksOther
	case len(rest) == 0:
		return unknown
	case !isBlank(rest[0]):
		return speaksOther
	case bytes.Contains(bytes.ToUpper(text), []byte("HTTP/")):
		return speaksHTTP
	case control >= 0:
		return speaksOther
	case !complete:
		return unknown
	}
	// HTTP/0.9 has no version.
	target := trimBlanks(line[method:])
	if bytes.EqualFold(line[:method], []byte("GET")) && bytes.HasPrefix(target, []byte("/")) {
		return speaksHTTP
	}
	return speaksOther
}

// isBlank reports whether lenient upstreams split a request line there: at white
// space of Latin-1.
func isBlank(b byte) bool {
	return b >= '\t' && b <= '\r' || b >= 0x1c && b <= ' ' || b == 0x85 || b == 0xa0
}

func trimBlanks(b []byte) []byte {
	for len(b) > 0 && isBlank(b[0]) {
		b = b[1:]
	}
	return b
}

func isToken(b byte) bool {
	switch {
	case b >= '0' && b <= '9', b >= 'a' && b <= 'z', b >= 'A' && b <= 'Z':
		return true
	}
	return bytes.IndexByte([]byte("!#$%&'*+-.^_`|~"), b) >= 0
}
