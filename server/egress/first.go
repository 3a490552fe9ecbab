package egress

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"
)

// alertUnrecognizedName is a fatal alert of TLS: record header, level,
// description.
var alertUnrecognizedName = []byte{0x15, 3, 3, 0, 2, 2, 112}

// relayStrict relays a connection to port 443, which must be TLS, or to port 80,
// which must be HTTP or TLS. Nothing passes in either direction before that is
// clear.
func (c *Conn) relayStrict(client Client) error {
	late, limit := c.openingTimer()
	late.Reset(limit)
	defer late.Stop()
	open := &opening{from: client, started: func() {}}
	spoken, err := open.run()
	switch {
	case len(open.read) == 0 && errors.Is(err, io.EOF):
		return client.CloseWrite()
	case err != nil && !errors.Is(err, io.EOF):
		return err
	case spoken == speaksTLS:
		return c.relayTLS(client, open.read, c.upstream, late)
	case spoken == speaksHTTP && c.target.port == 80:
		late.Stop()
		return c.relayHTTP(client, open.read, c.upstream)
	}
	wanted := "TLS"
	if c.target.port == 80 {
		wanted = "HTTP or TLS"
	}
	denied := c.target.denied(ReasonProtocol, "on port %d a program must speak %s", c.target.port, wanted)
	if spoken == speaksHTTP {
		return deny(client, denied, httpDenial(denied))
	}
	return deny(client, denied, nil)
}

// openingTimer aborts the connection when it fires. It is not running yet.
func (c *Conn) openingTimer() (timer *time.Timer, limit time.Duration) {
	limit = c.firstBytes()
	timer = time.AfterFunc(limit, func() {
		c.abort(fmt.Errorf("the program sent no whole ClientHello or request line to %s within %s", c.target, limit))
	})
	timer.Stop()
	return timer, limit
}

// relayTLS compares the ClientHello's name with the asked one. An encrypted
// ClientHello shows the name of its outer one.
func (c *Conn) relayTLS(client Client, read []byte, back io.Reader, late *time.Timer) error {
	name, read, err := readHello(io.MultiReader(bytes.NewReader(read), client))
	late.Stop()
	var denied *Denied
	switch normal, problem := normalizeName(name); {
	case err != nil:
		denied = c.target.denied(ReasonProtocol, "the ClientHello is broken")
	case name == "":
		denied = c.target.denied(ReasonServerName, "the ClientHello names no server; it must name %s", c.target.host)
	case problem != "" || normal != c.target.host:
		denied = c.target.denied(ReasonServerName, "the ClientHello names %s; it must name %s", shown(name), c.target.host)
	case c.readsRequests() && c.authority == nil:
		denied = c.target.denied(ReasonRequest, "its rules read its requests, and TLS of this sandbox is not read")
	case c.readsRequests():
		return c.relayHTTPS(client, read, back)
	default:
		return c.splice(client, io.MultiReader(bytes.NewReader(read), client), back)
	}
	return deny(client, denied, alertUnrecognizedName)
}

// deny answers the program and ends the direction to it.
func deny(client Client, denied *Denied, answer []byte) error {
	if len(answer) > 0 {
		if _, err := client.Write(answer); err != nil {
			return errors.Join(denied, err)
		}
	}
	return errors.Join(denied, client.CloseWrite())
}

// httpDenial is an HTTP response to a request that will not be read.
func httpDenial(denied *Denied) []byte {
	body := denied.Error() + "\n"
	return fmt.Appendf(nil, "HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body)
}
