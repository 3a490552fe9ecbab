package agentconn

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/stats"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/fault"
)

// Config configures a Set. All fields but OnDial and Stats must be set.
type Config struct {
	Provider providers.Provider
	// Version is the server's, and ProtocolMinor that of the agent protocol.
	Version       string
	ProtocolMinor int32
	// MaxRequest bounds a message from a caller, in bytes.
	MaxRequest int
	// Hello bounds the handshake, and Idle the time that an unused connection
	// stays open.
	Hello, Idle time.Duration
	// Small makes connections hold less memory, for streams that many sandboxes
	// keep open.
	Small bool
	// OnDial, if set, is called after each attempt to connect.
	OnDial func(ctx context.Context, err error)
	// Stats, if set, observes the calls to agents.
	Stats stats.Handler
}

// Set keeps at most one connection per sandbox. The first call that needs it
// dials, the others wait for that attempt, and CloseIdle closes it.
type Set struct {
	cfg Config

	mu     sync.Mutex
	slots  map[string]*slot // by name
	closed bool
	// open counts the goroutines of connections.
	open sync.WaitGroup
}

// slot is one sandbox's entry. conn and err are valid once ready is closed.
type slot struct {
	ready chan struct{}
	// cancel ends the attempt to connect.
	cancel context.CancelCauseFunc
	conn   *Conn
	err    error
}

// New returns an empty Set.
func New(cfg Config) *Set { return &Set{cfg: cfg, slots: make(map[string]*slot)} }

// Acquire returns a live connection for a call, which must be released. Waiting
// ends with ctx, but the attempt to connect goes on for other calls.
//
// known, unless nil, is the sandbox as the provider has just returned it, and
// saves the look-up. Acquire then replaces a connection to an incarnation that
// the provider no longer has, and ignores the failure of an attempt that another
// call began: it may be out of date.
func (s *Set) Acquire(ctx context.Context, key Key, known *providers.Info) (*Conn, error) {
	return s.find(ctx, key, known, (*Conn).beginCall)
}

// Inspect returns a live connection for a call that is no activity of the sandbox. It
// must be ended with EndInspection.
func (s *Set) Inspect(ctx context.Context, key Key, known *providers.Info) (*Conn, error) {
	return s.find(ctx, key, known, (*Conn).beginInspection)
}

func (s *Set) find(ctx context.Context, key Key, known *providers.Info, begin func(*Conn)) (*Conn, error) {
	for {
		sl, own, err := s.slot(ctx, key, known)
		if err != nil {
			return nil, err
		}
		select {
		case <-sl.ready:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		switch {
		case sl.err != nil && known != nil && (!own || errors.Is(sl.err, errDropped)) && !errors.Is(sl.err, fault.ErrShuttingDown):
			continue
		case sl.err != nil:
			return nil, sl.err
		case sl.conn.Key != key:
			return nil, providers.ErrNotFound
		}
		if known != nil && known.Incarnation != sl.conn.Incarnation {
			now, err := s.Lookup(ctx, key)
			if err != nil {
				return nil, err
			}
			if known = &now; now.Incarnation != sl.conn.Incarnation {
				s.forget(key.Name, sl)
				sl.conn.Cut()
				continue
			}
		}
		if sl.conn.alive() && s.use(key.Name, sl, begin) {
			return sl.conn, nil
		}
		s.forget(key.Name, sl)
	}
}

// use begins a call or an inspection. It reports false if the slot was given up.
func (s *Set) use(name string, sl *slot, begin func(*Conn)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slots[name] != sl {
		return false
	}
	begin(sl.conn)
	return true
}

// slot returns the sandbox's slot. If there is none it begins to connect, and
// reports that the attempt is this call's own.
func (s *Set) slot(ctx context.Context, key Key, known *providers.Info) (sl *slot, own bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, false, fault.ErrShuttingDown
	}
	if sl, ok := s.slots[key.Name]; ok {
		return sl, false, nil
	}
	return s.begin(ctx, key, known, nil), true, nil
}

// begin makes the sandbox's slot and begins to connect it. The caller holds mu.
func (s *Set) begin(ctx context.Context, key Key, known *providers.Info, raw net.Conn) *slot {
	attempt, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	sl := &slot{ready: make(chan struct{}), cancel: cancel}
	s.slots[key.Name] = sl
	s.open.Go(func() { s.fill(attempt, key, known, raw, sl) })
	return sl
}

// Adopt begins to shake hands over the connection that the provider returned
// with a sandbox, which may be nil. It replaces a connection to an older
// incarnation. It closes raw if another attempt is under way.
func (s *Set) Adopt(ctx context.Context, key Key, info providers.Info, raw net.Conn) {
	if raw == nil {
		return
	}
	s.mu.Lock()
	sl, taken := s.slots[key.Name]
	stale := false
	if taken {
		select {
		case <-sl.ready:
			stale = sl.err != nil || sl.conn.Incarnation != info.Incarnation
		default:
		}
	}
	adopted := !s.closed && (!taken || stale)
	if adopted {
		s.begin(ctx, key, &info, raw)
	}
	s.mu.Unlock()
	if adopted && stale && sl.err == nil {
		sl.conn.Cut()
	}
	if !adopted {
		_ = raw.Close()
	}
}

// dialTimeout bounds look-up, dialling and handshake together.
const dialTimeout = 20 * time.Second

// fill connects a slot and stays until the connection is dead.
func (s *Set) fill(ctx context.Context, key Key, known *providers.Info, raw net.Conn, sl *slot) {
	ctx, cancel := context.WithTimeoutCause(ctx, dialTimeout, fault.AgentUnavailable(errors.New("dialling took too long")))
	err := fault.Catch(func() error {
		var err error
		sl.conn, err = s.dial(ctx, key, known, raw)
		if errors.Is(err, providers.ErrReplaced) {
			// It may have been replaced between the look-up and the dial.
			sl.conn, err = s.dial(ctx, key, nil, nil)
		}
		return err
	})
	if s.cfg.OnDial != nil {
		s.cfg.OnDial(ctx, err)
	}
	cancel()
	sl.err = err
	s.mu.Lock()
	switch {
	case s.closed:
		sl.err = fault.ErrShuttingDown
	case s.slots[key.Name] != sl:
		sl.err = errDropped
	}
	sl.cancel(nil)
	if sl.err != nil && s.slots[key.Name] == sl {
		delete(s.slots, key.Name)
	}
	// Under the lock, so that its holder sees each slot either connected or without
	// a connection, and can take it away in either case.
	close(sl.ready)
	s.mu.Unlock()
	if err != nil {
		return
	}
	if sl.err != nil {
		sl.conn.Cut()
		return
	}
	<-sl.conn.pipe.dead
	s.forget(key.Name, sl)
	sl.conn.Cut()
}

func (s *Set) forget(name string, sl *slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slots[name] == sl {
		delete(s.slots, name)
	}
}

// Live returns the open connections.
func (s *Set) Live() []*Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*Conn, 0, len(s.slots))
	for _, sl := range s.slots {
		select {
		case <-sl.ready:
			if sl.err == nil {
				list = append(list, sl.conn)
			}
		default:
		}
	}
	return list
}

// Peek returns the sandbox's open connection, or nil. It is not acquired and must
// not carry a call.
func (s *Set) Peek(name string) *Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	sl, ok := s.slots[name]
	if !ok {
		return nil
	}
	select {
	case <-sl.ready:
		return sl.conn
	default:
		return nil
	}
}

// errDropped ends waiting for a connection to a sandbox that is gone. The next
// look-up returns the reason.
var errDropped = fault.AgentUnavailable(errors.New("the sandbox was stopped while it was dialled"))

// Drop cuts the sandbox's connection or ends the attempt to connect. Call it
// after the sandbox was stopped.
func (s *Set) Drop(name string) {
	s.mu.Lock()
	sl, ok := s.slots[name]
	delete(s.slots, name)
	ready := false
	if ok {
		select {
		case <-sl.ready:
			ready = true
		default:
			sl.cancel(errDropped)
		}
	}
	s.mu.Unlock()
	if ready && sl.err == nil {
		sl.conn.Cut()
	}
}

// CloseIdle closes connections that have been unused for Config.Idle.
func (s *Set) CloseIdle(now time.Time) {
	for _, c := range s.Live() {
		if s.retire(c, now) {
			c.Cut()
		}
	}
}

// retire takes an idle connection out of its slot, so that no call can acquire
// it.
func (s *Set) retire(c *Conn, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.users.Load() > 0 || c.inspections.Load() > 0 || now.Sub(time.Unix(0, c.lastUsed.Load())) < s.cfg.Idle {
		return false
	}
	if sl := s.slots[c.Key.Name]; sl != nil && sl.conn == c {
		delete(s.slots, c.Key.Name)
	}
	return true
}

// Close cuts every connection and rejects new ones.
func (s *Set) Close() {
	s.mu.Lock()
	s.closed = true
	for _, sl := range s.slots {
		sl.cancel(fault.ErrShuttingDown) // no effect once connected
	}
	s.mu.Unlock()
	for _, c := range s.Live() {
		c.Cut()
	}
}

// Wait returns when all connections are closed.
func (s *Set) Wait() { s.open.Wait() }
