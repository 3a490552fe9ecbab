package egress

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
)

// Intercept lets Relay end TLS with a certificate of the authority, which the
// program must trust, where the rules have methods, paths or a secret. The
// upstream's certificate must be valid for the asked name, and whatever is not
// HTTP is refused. It must be called before Relay, and calls authority at most
// once, when a connection needs it.
//
// Without Intercept, Relay refuses TLS to such names.
func (c *Conn) Intercept(authority func() (*Authority, error), secrets Secrets) {
	c.authority, c.secrets = authority, secrets
}

// relayHTTPS serves HTTP/1 and HTTP/2 in TLS, request by request. read begins
// with a ClientHello for the asked name.
func (c *Conn) relayHTTPS(client Client, read []byte, back io.Reader) error {
	authority, err := c.authority()
	if err != nil {
		return err
	}
	certificate, err := authority.leafFor(c.target.host)
	if err != nil {
		return err
	}
	gate := c.newGate("https", back)
	config := &tls.Config{Certificates: []tls.Certificate{*certificate}, MinVersion: tls.VersionTLS12}
	return gate.relay(client, io.MultiReader(bytes.NewReader(read), client), func(server *http.Server, l net.Listener) {
		server.TLSConfig = config
		server.Protocols = new(http.Protocols)
		server.Protocols.SetHTTP1(true)
		server.Protocols.SetHTTP2(true)
		_ = server.ServeTLS(l, "", "")
	})
}
