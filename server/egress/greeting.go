package egress

import (
	"bytes"
	"errors"
	"io"
	"os"
	"time"
)

// greeting is the first read of an upstream.
type greeting struct {
	bytes []byte
	err   error
}

func (g greeting) silent() bool { return errors.Is(g.err, os.ErrDeadlineExceeded) }

// isHTTP2 reports whether the upstream began with a SETTINGS frame, as servers
// of HTTP/2 without TLS do before they have heard from the client.
func (g greeting) isHTTP2() bool {
	const header, settings = 9, 4
	return len(g.bytes) >= header && g.bytes[3] == settings && bytes.Equal(g.bytes[5:header], make([]byte, 4))
}

// then returns the upstream's bytes from the greeting on.
func (g greeting) then(upstream io.Reader) io.Reader {
	switch {
	case g.err != nil && !g.silent():
		upstream = failed{g.err}
	case len(g.bytes) == 0:
		return upstream
	}
	return io.MultiReader(bytes.NewReader(g.bytes), upstream)
}

type failed struct{ err error }

func (f failed) Read([]byte) (int, error) { return 0, f.err }

// opened is the result of opening.run.
type opened struct {
	spoken protocol
	err    error
}

// relayAny relays a connection to a port other than 80 and 443. TLS and HTTP are
// checked. Other protocols pass, and so does everything after an upstream that
// speaks first, unless it speaks HTTP/2.
func (c *Conn) relayAny(client Client) error {
	late, limit := c.openingTimer()
	defer late.Stop()
	open := &opening{from: client, started: func() { late.Reset(limit) }}
	program := make(chan opened, 1)
	go func() {
		spoken, err := open.run()
		if spoken != speaksTLS {
			late.Stop()
		}
		program <- opened{spoken, err}
	}()
	upstream := make(chan greeting, 1)
	go func() {
		buf := make([]byte, 4096)
		n, err := c.upstream.Read(buf)
		upstream <- greeting{buf[:n], err}
	}()

	var first opened
	var greeted greeting
	select {
	case greeted = <-upstream:
		if !greeted.isHTTP2() && !c.readsRequests() {
			open.settled.Store(true)
			late.Stop()
			return c.splice(client, &afterOpening{open: open, program: program, client: client}, greeted.then(c.upstream))
		}
		first = <-program
	case first = <-program:
		_ = c.upstream.SetReadDeadline(time.Unix(1, 0))
		greeted = <-upstream
		_ = c.upstream.SetReadDeadline(time.Time{})
	}
	return c.relayOpened(client, open.read, first, greeted, late)
}

// relayOpened relays a connection whose program has spoken.
func (c *Conn) relayOpened(client Client, read []byte, first opened, greeted greeting, late *time.Timer) error {
	ended := errors.Is(first.err, io.EOF)
	switch {
	case first.err != nil && !ended:
		return first.err
	case first.spoken == speaksTLS:
		return c.relayTLS(client, read, greeted.then(c.upstream), late)
	case first.spoken == speaksHTTP:
		return c.relayHTTP(client, read, greeted.then(c.upstream))
	case first.spoken == unknown && !ended:
		return deny(client, c.target.denied(ReasonProtocol, "the first line is longer than %d bytes", maxLine), nil)
	}
	if c.readsRequests() {
		return deny(client, c.target.denied(ReasonProtocol, "its rules allow HTTP requests only"), nil)
	}
	rest := io.Reader(client)
	if ended {
		rest = failed{io.EOF}
	}
	return c.splice(client, io.MultiReader(bytes.NewReader(read), rest), greeted.then(c.upstream))
}

// afterOpening reads what the program sends, from the bytes of an opening that
// may still be reading.
type afterOpening struct {
	open    *opening
	program <-chan opened
	client  io.Reader
	from    io.Reader
}

func (a *afterOpening) Read(p []byte) (int, error) {
	if a.from == nil {
		first := <-a.program
		if first.err != nil {
			a.client = failed{first.err}
		}
		a.from = io.MultiReader(bytes.NewReader(a.open.read), a.client)
	}
	return a.from.Read(p)
}
