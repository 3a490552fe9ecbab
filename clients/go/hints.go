package sandgate

import "strings"

// A hint suggests a cure if the server cannot be reached; its text is in hints.
type hint string

const (
	hintNone              hint = ""
	hintExpired           hint = "certificate_expired"
	hintAnotherName       hint = "certificate_for_another_name"
	hintUntrusted         hint = "certificate_untrusted"
	hintCertificateWanted hint = "certificate_wanted"
	hintNotRunning        hint = "not_running"
	hintNoTLS             hint = "server_speaks_no_tls"
	hintTLS               hint = "server_speaks_tls"
)

// hints are the same texts in every client.
var hints = map[hint]string{
	hintExpired:           "its certificate has expired or is not valid yet: renew it, or set the clocks right",
	hintAnotherName:       "its certificate is for another name: the address must be a name or an IP address in it",
	hintUntrusted:         "its certificate is not trusted: the CA file (SANDGATE_CA_FILE) must hold the authority that issued it",
	hintCertificateWanted: "it ended the TLS handshake: it may want a certificate of the client, from an authority that it knows (SANDGATE_CERT_FILE and SANDGATE_KEY_FILE)",
	hintNotRunning:        "is `sandgate serve` running there?",
	hintNoTLS:             "it does not speak TLS, and this client does: use http://… or HOST:PORT without a CA file",
	hintTLS:               "if it speaks TLS, use https://… or set the CA file (SANDGATE_CA_FILE)",
}

// Parts of the error texts of gRPC, crypto/tls and the system; the first match counts.
var (
	refusedSigns = []string{"connection refused", "no such file or directory"}
	tlsSigns     = []struct {
		hint  hint
		signs []string
	}{
		{hintNoTLS, []string{"first record does not look like a TLS handshake"}},
		{hintExpired, []string{"certificate has expired or is not yet valid"}},
		{hintAnotherName, []string{"x509: cannot validate certificate for", "x509: certificate is valid for", "x509: certificate is not valid for"}},
		{hintUntrusted, []string{"failed to verify certificate", "signed by unknown authority"}},
		{hintCertificateWanted, []string{"tls: certificate required", "tls: unknown certificate authority", "tls: bad certificate"}},
	}
	closedSigns = []string{"EOF", "connection reset", "broken pipe", "error reading server preface"}
)

// hintOf returns the hint for an error text of gRPC. speaksTLS reports whether the
// client uses TLS; reached, whether the server has answered before, so that address
// and TLS are right.
func hintOf(message string, speaksTLS, reached bool) hint {
	if speaksTLS {
		for _, s := range tlsSigns {
			if containsAny(message, s.signs) {
				return s.hint
			}
		}
	}
	switch {
	case containsAny(message, refusedSigns):
		return hintNotRunning
	case reached || !containsAny(message, closedSigns):
		return hintNone
	case speaksTLS:
		return hintCertificateWanted
	}
	return hintTLS
}

func containsAny(s string, parts []string) bool {
	for _, part := range parts {
		if strings.Contains(s, part) {
			return true
		}
	}
	return false
}
