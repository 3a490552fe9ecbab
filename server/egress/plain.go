package egress

import (
	"bytes"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
)

// Limits of one connection of HTTP.
const (
	maxHead    = 64 << 10 // bytes of a request's or a response's header
	maxStreams = 100      // concurrent requests of HTTP/2
	// Bytes of bodies that one side of HTTP/2 has sent and the other does not take,
	// of one stream and of a connection. Upstreams are far away, and need a wide window
	// to send fast; net/http's own have no bound for a connection.
	programStreamWindow, programWindow   = 64 << 10, 256 << 10
	upstreamStreamWindow, upstreamWindow = 1 << 20, 2 << 20
)

// http2Preface begins a connection of HTTP/2 without TLS.
var http2Preface = []byte("PRI * HTTP/2")

// quiet takes what net/http logs about connections: programs of a sandbox would
// fill the server's log.
var quiet = log.New(io.Discard, "", 0)

// relayHTTP serves HTTP/1 and HTTP/2 without TLS, request by request: a program
// could otherwise send its second request to another host of the same address.
// Each request is parsed and written anew, so that no two readings of one stream
// can differ. back is the upstream, with what it has sent already.
func (c *Conn) relayHTTP(client Client, read []byte, back io.Reader) error {
	http2 := bytes.HasPrefix(read, http2Preface)
	return c.newGate("http", back).relay(client, io.MultiReader(bytes.NewReader(read), client), func(server *http.Server, l net.Listener) {
		server.Protocols = new(http.Protocols)
		server.Protocols.SetHTTP1(!http2)
		server.Protocols.SetUnencryptedHTTP2(http2)
		_ = server.Serve(l)
	})
}

// relay serves one connection of a program, whose bytes come from from.
func (g *httpGate) relay(client Client, from io.Reader, serve func(*http.Server, net.Listener)) error {
	near, far := net.Pipe()
	served := newServedConn(near, far)
	server := &http.Server{
		Handler: g,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerConnection: programWindow, MaxReceiveBufferPerStream: programStreamWindow,
		},
		ReadHeaderTimeout: g.conn.firstBytes(), IdleTimeout: g.conn.Idle(), MaxHeaderBytes: maxHead,
		DisableGeneralOptionsHandler: true, ErrorLog: quiet,
		ConnState: func(_ net.Conn, state http.ConnState) { served.setState(state) },
	}
	finished := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		serve(server, served.listener())
		// A request that is still running has lost its connection.
		_ = server.Close()
	})
	running.Go(func() {
		select {
		case <-g.conn.cut:
			_ = near.Close()
			_ = far.Close()
		case <-finished:
		}
	})
	// The program's side has no deadlines, which net/http needs, so a pipe stands
	// between. This goroutine ends when the caller closes the client.
	go func() {
		_, err := io.Copy(near, from)
		if err == nil {
			served.noMoreRequests()
		} else if !errors.Is(err, io.ErrClosedPipe) {
			g.conn.abort(err)
		}
	}()
	_, err := io.Copy(client, near)
	if err != nil && !errors.Is(err, io.ErrClosedPipe) {
		g.conn.abort(err)
	} else {
		err = client.CloseWrite()
	}
	_ = near.Close()
	close(finished)
	g.close()
	running.Wait()
	if denied := g.denied.Load(); denied != nil {
		return errors.Join(denied, err)
	}
	return err
}
