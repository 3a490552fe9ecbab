package egress

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
)

// Requests decides about the HTTP requests of one connection. It is called
// concurrently, where the program speaks HTTP/2.
type Requests interface {
	// Request may change the headers of a request before it is sent. An error
	// refuses the request; the program reads its text. encrypted is false for
	// HTTP without TLS.
	Request(r *http.Request, encrypted bool) error
	// Response may change the headers of a response, or its trailers, before the
	// program gets them.
	Response(header http.Header)
}

// Intercept lets Relay end TLS with a certificate of the authority, which the
// program must trust. Relay does so where the rules have methods or paths, and
// for every connection if requests is not nil: each request then passes through
// requests. The upstream's certificate must be valid for the asked name, and
// whatever is not HTTP is refused. It must be called before Relay.
//
// Without Intercept, Relay refuses TLS to names whose rules have methods or
// paths.
func (c *Conn) Intercept(authority *Authority, requests Requests) {
	c.authority, c.requests = authority, requests
}

// relayHTTPS serves HTTP/1 and HTTP/2 in TLS, request by request. read begins
// with a ClientHello for the asked name.
func (c *Conn) relayHTTPS(client Client, read []byte, back io.Reader) error {
	certificate, err := c.authority.leafFor(c.target.host)
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
