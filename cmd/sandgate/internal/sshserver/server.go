// Package sshserver serves sandboxes over SSH: an SSH connection is to the sandbox that
// its user name names. It is a client of the gateway, and no sandbox needs an sshd.
package sshserver

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/server/limit"
)

// Bounds of the server.
const (
	maxConnections = 1024 // that are logged in
	maxOfCaller    = 128  // of these, with one key, or with tokens of one principal
	maxPending     = 256  // connections that are not logged in yet
	maxOfHost      = 64   // of these, from one host
	maxAuthTries   = 6
	maxChannels    = 64 // of one connection
	maxRequests    = 64 // of one SFTP session, that are not answered yet
	maxFiles       = 32 // open at once by SFTP in one connection
)

// timing are the server's durations.
type timing struct {
	login     time.Duration // until a connection is authenticated
	unused    time.Duration // until a connection without channels is closed
	keepalive time.Duration // between two probes of the peer
	answer    time.Duration // until a probe is answered
	control   time.Duration // of one signal or resize
	pause     time.Duration // after accepting failed
}

var defaultTiming = timing{
	login: 30 * time.Second, unused: 10 * time.Minute, keepalive: 30 * time.Second, answer: time.Minute,
	control: 5 * time.Second, pause: 100 * time.Millisecond,
}

// Config configures a Server.
type Config struct {
	// Connect returns a client of the gateway; the options come after its own. Required.
	Connect func(ctx context.Context, opts ...sandgate.Option) (*sandgate.Client, error)
	// HostKey identifies the server. Required.
	HostKey ssh.Signer
	// Keys may log in. Nil: none.
	Keys *Keys
	// Tokens accepts a token of the gateway as password.
	Tokens bool
	// Log reports logins. Required.
	Log *slog.Logger
}

// Server accepts SSH connections.
type Server struct {
	config  Config
	timing  timing
	pending *limit.Pending // connections that are not logged in yet

	mu       sync.Mutex
	conns    int            // connections that are logged in
	callers  map[string]int // the same, of each caller
	most     int            // of conns
	ofCaller int            // of each caller
}

// New returns a server. It fails if nobody could log in.
func New(config Config) (*Server, error) {
	if config.Keys == nil && !config.Tokens {
		return nil, errors.New("nobody can log in: name a file of public keys, or accept tokens")
	}
	// Of the extensions of pkg/sftp, those that the handlers implement.
	if err := sftp.SetSFTPExtensions("posix-rename@openssh.com", "hardlink@openssh.com"); err != nil {
		return nil, err
	}
	return &Server{
		config: config, timing: defaultTiming, pending: limit.NewPending(maxPending, maxOfHost),
		callers: make(map[string]int), most: maxConnections, ofCaller: maxOfCaller,
	}, nil
}

// Serve accepts connections until ctx ends. Then it closes them, and returns when their
// commands have been killed.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	var open sync.WaitGroup
	defer open.Wait()
	for {
		raw, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = raw.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil:
			// For example because this program has too many open files.
			s.config.Log.Error("a connection cannot be accepted", "error", err)
			select {
			case <-time.After(s.timing.pause):
			case <-ctx.Done():
			}
			continue
		}
		open.Go(func() { s.handle(ctx, raw) })
	}
}

// handle serves one connection.
func (s *Server) handle(ctx context.Context, raw net.Conn) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer func() { _ = raw.Close() }()
	defer context.AfterFunc(ctx, func() { _ = raw.Close() })()
	log := s.config.Log.With("remote", raw.RemoteAddr())
	var entry limit.Entry
	s.pending.Add(&entry, raw.RemoteAddr(), func() { cancel(errPending) })
	defer s.pending.Remove(&entry)
	login := &login{server: s, log: log}
	defer login.close()
	_ = raw.SetDeadline(time.Now().Add(s.timing.login))
	server, channels, requests, err := login.handshake(ctx, raw)
	s.pending.Remove(&entry)
	if cause := context.Cause(ctx); cause != nil {
		err = cause // of the connection's end
	}
	if err != nil {
		log.Info("login failed", "error", err)
		return
	}
	_ = raw.SetDeadline(time.Time{})
	log = log.With("sandbox", server.User())
	log.Info("logged in", "with", login.with)
	c := &conn{server: s, ssh: server, ctx: ctx, cancel: cancel, log: log,
		sandbox: login.client.Sandbox(server.User()), home: login.home, files: make(chan struct{}, maxFiles)}
	c.serve(channels, requests)
	log.Info("connection closed")
}

// errPending ends a connection that makes way for a newer one.
var errPending = errors.New("too many connections were logging in, and this was the oldest")

// admit counts a connection of a caller, unless there are too many.
func (s *Server) admit(caller string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.callers[caller] >= s.ofCaller:
		return errConnections
	case s.conns >= s.most:
		return errFull
	}
	s.conns++
	s.callers[caller]++
	return nil
}

// leave ends a connection that admit counted.
func (s *Server) leave(caller string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns--
	if s.callers[caller]--; s.callers[caller] == 0 {
		delete(s.callers, caller)
	}
}

// take takes a slot if one is free.
func take(slots chan struct{}) bool {
	select {
	case slots <- struct{}{}:
		return true
	default:
		return false
	}
}

func release(slots chan struct{}) { <-slots }
