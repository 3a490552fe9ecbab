package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/audit"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/preview"
)

// Bounds of a connection to the preview listener before its first request with a
// valid token. Those of the gate apply, too.
const (
	previewHeaderTime  = 10 * time.Second
	previewIdleTime    = time.Minute
	previewHeaderBytes = 32 << 10
	// previewStreams is the requests at once on one connection of HTTP/2. An agent
	// serves 128 connections to ports.
	previewStreams = 100
)

// previewServer is what serves requests for URLs, on any number of listeners.
type previewServer struct {
	http    *http.Server
	handler http.Handler
	// running is held for reading by each request. Shutdown locks it.
	running sync.RWMutex

	mu    sync.Mutex
	conns map[net.Conn]bool // nil once they are closed
	stop  context.CancelCauseFunc
}

// newPreview returns nil if the server creates no URLs.
func (s *Server) newPreview() *previewServer {
	if s.cfg.Preview == nil {
		return nil
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	p := &previewServer{stop: cancel, conns: make(map[net.Conn]bool)}
	p.handler = preview.NewHandler(preview.Config{
		URLs: s.cfg.Preview, Log: s.log,
		Sandboxes: func(who authn.Principal) sandboxv1.SandboxServiceClient {
			return sandboxv1.NewSandboxServiceClient(s.inProcess.Connect(who))
		},
		Authenticated: s.gate.Accepted,
		Ended:         s.previewEnded,
	})
	p.http = &http.Server{
		Handler:     http.HandlerFunc(s.servePreview),
		BaseContext: func(net.Listener) context.Context { return ctx },
		// By it a call knows its peer and its connection.
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return peer.NewContext(ctx, &peer.Peer{Addr: c.RemoteAddr()})
		},
		TLSConfig: s.cfg.PreviewTLS, DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout: previewHeaderTime, IdleTimeout: previewIdleTime, MaxHeaderBytes: previewHeaderBytes,
		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: previewStreams},
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	return p
}

// ServePreview accepts requests for URLs of Config.Preview until Shutdown and then
// returns nil. It may be called for several listeners.
func (s *Server) ServePreview(l net.Listener) error {
	if s.preview == nil {
		return errors.New("server: Config.Preview is not set")
	}
	l = &previewListener{Listener: s.gate.Bound(l), server: s.preview}
	var err error
	if s.cfg.PreviewTLS == nil {
		err = s.preview.http.Serve(l)
	} else {
		err = s.preview.http.ServeTLS(l, "", "")
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// servePreview serves a request unless the server stops.
func (s *Server) servePreview(w http.ResponseWriter, r *http.Request) {
	if s.isStopping() || !s.preview.running.TryRLock() {
		preview.Unavailable(w, r)
		return
	}
	defer s.preview.running.RUnlock()
	s.preview.handler.ServeHTTP(w, r)
}

// previewEnded counts a request. One without a valid token leaves an audit record,
// like a call without valid credentials.
func (s *Server) previewEnded(ctx context.Context, e preview.Ended) {
	s.metrics.PreviewEnded(e.Kind, statusClass(e.Status))
	if e.Kind != preview.KindRefused {
		return
	}
	s.gate.Rejected(ctx)
	suppressed, ok := s.gate.RecordRefusal()
	if !ok {
		s.metrics.Suppressed.Inc()
		return
	}
	c, ctx := call.New(ctx, "Preview")
	code, reason := fault.CodeAndName(sandboxv1.ErrorReason_ERROR_REASON_CREDENTIALS_INVALID)
	if e.Status == http.StatusBadRequest {
		code, reason = codes.InvalidArgument, fault.ReasonName(sandboxv1.ErrorReason_ERROR_REASON_REQUEST_INVALID)
	}
	c.Audit.Phase, c.Audit.Code, c.Audit.Reason, c.Audit.Suppressed = audit.Refused, code.String(), reason, suppressed
	// The request has been refused and can't be any more.
	_ = s.audit.Record(ctx, c.Audit)
}

// statusClass is the label of a status, such as "2xx". A handler that wrote nothing
// was cut off.
func statusClass(status int) string {
	if status < 100 || status > 599 {
		return "none"
	}
	return fmt.Sprintf("%dxx", status/100)
}

// idle returns a channel that is closed when no request runs. From its call on, no
// other begins.
func (p *previewServer) idle() <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if p != nil {
			p.running.Lock()
			p.running.Unlock() //nolint:staticcheck // SA2001: it only waits for the requests that hold the lock
		}
	}()
	return done
}

// close closes all listeners and connections, also those that were upgraded and whose
// receivers read nothing.
func (p *previewServer) close() {
	if p == nil {
		return
	}
	p.stop(fault.ErrShuttingDown)
	_ = p.http.Close()
	p.mu.Lock()
	open := p.conns
	p.conns = nil
	p.mu.Unlock()
	for c := range open {
		_ = c.Close()
	}
}

// previewListener knows its open connections: http.Server forgets those that are
// upgraded.
type previewListener struct {
	net.Listener
	server *previewServer
}

// Accept implements net.Listener.
func (l *previewListener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &previewConn{Conn: raw, server: l.server}
	l.server.mu.Lock()
	defer l.server.mu.Unlock()
	if l.server.conns == nil {
		return nil, errors.Join(net.ErrClosed, raw.Close())
	}
	l.server.conns[c] = true
	return c, nil
}

type previewConn struct {
	net.Conn
	server *previewServer
}

// Close implements net.Conn.
func (c *previewConn) Close() error {
	c.server.mu.Lock()
	delete(c.server.conns, c)
	c.server.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite ends one direction, which upgraded connections do.
func (c *previewConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
