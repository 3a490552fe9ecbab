package egress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"time"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
)

const (
	maxHeader = 64 << 10
	// proxyIdle is how long the proxy keeps an unused connection of a program, or to
	// a destination.
	proxyIdle = time.Minute
	// maxPhrase bounds the text in the status line of a refused CONNECT, in bytes.
	maxPhrase = 300
)

// listenProxy opens the proxy.
func (s *Service) listenProxy() error {
	conns := &connQueue{conns: make(chan net.Conn), closed: make(chan struct{})}
	server := &http.Server{
		Handler: s.handler(&s.upstreams), MaxHeaderBytes: maxHeader, ReadHeaderTimeout: setupTime, IdleTimeout: proxyIdle,
		ErrorLog: log.New(io.Discard, "", 0),
	}
	if !s.open.add(server) || !s.open.add(conns) {
		return errStopped
	}
	s.work.Go(func() {
		_ = server.Serve(conns)
		s.upstreams.close()
	})
	_, err := s.listen(s.cfg.Proxy, func(conn *net.TCPConn) { s.serveProxy(conn, conns) })
	if err != nil {
		return fmt.Errorf("the sandbox's proxy: %w", err)
	}
	return nil
}

// serveProxy tells the protocol by its first bytes.
func (s *Service) serveProxy(conn *net.TCPConn, web *connQueue) {
	_ = conn.SetReadDeadline(time.Now().Add(setupTime))
	head := &io.LimitedReader{R: conn, N: maxHeader}
	in := bufio.NewReader(head)
	first, err := in.Peek(1)
	switch {
	case err != nil:
	case first[0] == socksVersion:
		head.N = math.MaxInt64
		s.serveSOCKS(conn, in)
	case first[0] == connectPrefix[0] && begins(in, connectPrefix):
		// Not by net/http, whose goroutines a new connection would wait for.
		request, err := http.ReadRequest(in)
		if err != nil {
			refuseConnect(conn, http.StatusBadRequest, "the request is malformed, or its head is too long")
			return
		}
		head.N = math.MaxInt64
		_ = conn.SetReadDeadline(time.Time{})
		s.connect(conn, in, request.RequestURI)
	case first[0] >= 'A' && first[0] <= 'Z':
		head.N = math.MaxInt64
		_ = conn.SetReadDeadline(time.Time{})
		web.serve(&bufferedConn{Conn: conn, tcp: conn, in: in, closed: make(chan struct{})})
	}
}

// connectPrefix begins a CONNECT request.
const connectPrefix = "CONNECT "

// begins reports whether the next bytes are the prefix. It waits for as many.
func begins(in *bufio.Reader, prefix string) bool {
	next, err := in.Peek(len(prefix))
	return err == nil && string(next) == prefix
}

// handler serves HTTP requests of programs.
func (s *Service) handler(transport http.RoundTripper) http.Handler {
	forward := &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) {
			// ReverseProxy removes these, since it stands in front of a server. This
			// proxy stands behind a program, and passes on what the program sends.
			for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
				if values, ok := r.In.Header[name]; ok {
					r.Out.Header[name] = values
				}
			}
			r.Out.Host = r.In.URL.Host
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			status, text := statusOf(err)
			http.Error(w, text, status)
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodConnect:
			s.serveConnect(w, r)
		case r.URL.Scheme == "http" && r.URL.Host != "":
			forward.ServeHTTP(w, r)
		default:
			http.Error(w, "this is the proxy of the sandbox: send CONNECT, or a request for a URL that begins with http://", http.StatusBadRequest)
		}
	})
}

// serveConnect answers a CONNECT that follows another request.
func (s *Service) serveConnect(w http.ResponseWriter, r *http.Request) {
	program, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = program.Close() }()
	_ = program.SetDeadline(time.Time{})
	s.connect(program.(*bufferedConn).tcp, buffered.Reader, r.RequestURI)
}

// connect answers CONNECT, and carries the connection.
func (s *Service) connect(program *net.TCPConn, in io.Reader, address string) {
	host, port, err := splitHostPort(address, 0)
	if err != nil {
		refuseConnect(program, http.StatusBadRequest, err.Error())
		return
	}
	remote, err := s.dial(s.ctx, host, port)
	if err != nil {
		status, text := statusOf(err)
		refuseConnect(program, status, text)
		return
	}
	defer func() { _ = remote.Close() }()
	if _, err := io.WriteString(program, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	s.relay(program, in, remote)
}

// refuseConnect answers a CONNECT that fails. Few clients show the body, so the
// status line has the text as well.
func refuseConnect(program net.Conn, status int, text string) {
	_ = program.SetDeadline(time.Now().Add(setupTime))
	phrase := printable(text)
	_, _ = fmt.Fprintf(program, "HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s\n",
		status, phrase[:min(len(phrase), maxPhrase)], len(text)+1, text)
}

// statusOf returns the HTTP status of a failed connection, and the text for people.
func statusOf(err error) (int, string) {
	var r *refusal
	switch {
	case !errors.As(err, &r):
		return http.StatusBadGateway, err.Error()
	case r.reason == agentv1.EgressRefusalReason_EGRESS_REFUSAL_REASON_DENIED:
		return http.StatusForbidden, r.message
	case r.reason == agentv1.EgressRefusalReason_EGRESS_REFUSAL_REASON_LIMIT:
		return http.StatusTooManyRequests, r.message
	default:
		return http.StatusBadGateway, r.message
	}
}

// dialHTTP is the dialer of requests with absolute URLs.
func (s *Service) dialHTTP(ctx context.Context, _, address string) (net.Conn, error) {
	host, port, err := splitHostPort(address, 80)
	if err != nil {
		return nil, err
	}
	conn, err := s.dial(ctx, host, port)
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// splitHostPort splits an address. missing is the port of one without; 0: it must
// have one.
func splitHostPort(address string, missing uint16) (string, uint16, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil && missing > 0 {
		return strings.Trim(address, "[]"), missing, nil
	}
	n, wrong := strconv.ParseUint(port, 10, 16)
	if err != nil || wrong != nil || n == 0 || host == "" {
		return "", 0, fmt.Errorf("the destination must be HOST:PORT, not %.80q", address)
	}
	return host, uint16(n), nil
}

// connQueue is a listener whose connections come from serve.
type connQueue struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

// serve hands over a connection and returns when it is closed.
func (q *connQueue) serve(c *bufferedConn) {
	select {
	case q.conns <- c:
		<-c.closed
	case <-q.closed:
	}
}

// Accept implements net.Listener.
func (q *connQueue) Accept() (net.Conn, error) {
	select {
	case c := <-q.conns:
		return c, nil
	case <-q.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (q *connQueue) Close() error {
	q.once.Do(func() { close(q.closed) })
	return nil
}

// Addr implements net.Listener.
func (q *connQueue) Addr() net.Addr { return &net.TCPAddr{} }

// bufferedConn is a connection whose first bytes have been read.
type bufferedConn struct {
	net.Conn
	tcp    *net.TCPConn // the same; its WriteTo would miss what in holds
	in     *bufio.Reader
	once   sync.Once
	closed chan struct{}
}

// Read implements net.Conn.
func (c *bufferedConn) Read(p []byte) (int, error) { return c.in.Read(p) }

// CloseWrite ends the program's input.
func (c *bufferedConn) CloseWrite() error { return c.tcp.CloseWrite() }

// Close implements net.Conn.
func (c *bufferedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
