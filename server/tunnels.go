package server

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/fault"
)

// tunnels keeps at most one connection per sandbox. It is opened by the first
// call that needs it, while the others wait for that one attempt, and closed
// when it was unused for a while.
type tunnels struct {
	provider providers.Provider
	version  string
	minor    int32 // of the agent protocol
	timing   Timing
	codec    codec
	maxSend  int
	// dialled is called after each attempt to open a tunnel.
	dialled func(ctx context.Context, err error)

	mu     sync.Mutex
	slots  map[string]*slot
	closed bool
	// open counts goroutines that must end before the server is gone.
	open sync.WaitGroup
}

// slot is one sandbox's place. t and err may be read once ready is closed.
type slot struct {
	ready chan struct{}
	// cancel ends the attempt to open.
	cancel context.CancelCauseFunc
	t      *tunnel
	err    error
}

func newTunnels(cfg Config, c codec) *tunnels {
	return &tunnels{
		provider: cfg.Provider, version: cfg.Version, minor: protocolMinor, timing: cfg.Timing, codec: c,
		maxSend: cfg.Limits.MaxMessageBytes + maxEvent, slots: make(map[string]*slot),
		dialled: func(context.Context, error) {},
	}
}

// getKnown returns a live tunnel for a call, which must be released. A wait ends
// with ctx; the attempt to open goes on for the others who wait. Where the sandbox
// is known, it spares the look-up: a tunnel to an incarnation that the provider no
// longer has is replaced, and the failure of an attempt that somebody else began,
// perhaps with what is now out of date, does not count.
func (ts *tunnels) getKnown(ctx context.Context, b box, known *providers.Info) (*tunnel, error) {
	return ts.find(ctx, b, known, (*tunnel).beginCall)
}

// look returns a live tunnel for the server's own look at the sandbox, which
// must be ended with endLook and is no use of the sandbox.
func (ts *tunnels) look(ctx context.Context, b box) (*tunnel, error) {
	return ts.find(ctx, b, nil, (*tunnel).beginLook)
}

func (ts *tunnels) find(ctx context.Context, b box, known *providers.Info, begin func(*tunnel)) (*tunnel, error) {
	for {
		s, own, err := ts.slot(ctx, b, known)
		if err != nil {
			return nil, err
		}
		select {
		case <-s.ready:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		switch {
		case s.err != nil && known != nil && (!own || errors.Is(s.err, errDropped)) && !errors.Is(s.err, fault.ErrShuttingDown):
			continue
		case s.err != nil:
			return nil, s.err
		case s.t.box != b:
			return nil, providers.ErrNotFound
		}
		if known != nil && known.Incarnation != s.t.incarnation {
			now, err := ts.lookup(ctx, b)
			if err != nil {
				return nil, err
			}
			if known = &now; now.Incarnation != s.t.incarnation {
				ts.forget(b.name, s)
				s.t.cut()
				continue
			}
		}
		if s.t.alive() && ts.use(b.name, s, begin) {
			return s.t, nil
		}
		ts.forget(b.name, s)
	}
}

// use begins a call or a look, unless the slot was given up meanwhile.
func (ts *tunnels) use(name string, s *slot, begin func(*tunnel)) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.slots[name] != s {
		return false
	}
	begin(s.t)
	return true
}

// slot returns the sandbox's slot. Where there is none it begins to open a
// tunnel, and reports that this is the caller's own attempt.
func (ts *tunnels) slot(ctx context.Context, b box, known *providers.Info) (s *slot, own bool, err error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.closed {
		return nil, false, fault.ErrShuttingDown
	}
	if s, ok := ts.slots[b.name]; ok {
		return s, false, nil
	}
	return ts.begin(ctx, b, known, nil), true, nil
}

// begin makes the sandbox's slot and begins to fill it. The caller holds mu.
func (ts *tunnels) begin(ctx context.Context, b box, known *providers.Info, conn net.Conn) *slot {
	attempt, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	s := &slot{ready: make(chan struct{}), cancel: cancel}
	ts.slots[b.name] = s
	ts.open.Go(func() { ts.fill(attempt, b, known, conn, s) })
	return s
}

// adopt begins to open a tunnel over the connection that the provider returned
// with a sandbox, which may be nil. A connection that is not needed, because
// another attempt is under way, is closed.
func (ts *tunnels) adopt(ctx context.Context, b box, info providers.Info, conn net.Conn) {
	if conn == nil {
		return
	}
	ts.mu.Lock()
	s, taken := ts.slots[b.name]
	stale := false
	if taken {
		select {
		case <-s.ready:
			stale = s.err != nil || s.t.incarnation != info.Incarnation
		default:
		}
	}
	adopted := !ts.closed && (!taken || stale)
	if adopted {
		ts.begin(ctx, b, &info, conn)
	}
	ts.mu.Unlock()
	if adopted && stale && s.err == nil {
		s.t.cut()
	}
	if !adopted {
		_ = conn.Close()
	}
}

// openTimeout bounds the whole of look-up, dialling and hand-shake.
const openTimeout = 20 * time.Second

// fill opens the tunnel of a slot and stays until it is dead.
func (ts *tunnels) fill(ctx context.Context, b box, known *providers.Info, conn net.Conn, s *slot) {
	ctx, cancel := context.WithTimeoutCause(ctx, openTimeout, fault.AgentUnavailable(errors.New("dialling took too long")))
	err := fault.Catch(func() error {
		var err error
		s.t, err = ts.openTunnel(ctx, b, known, conn)
		if errors.Is(err, providers.ErrReplaced) {
			// It may have been replaced between the look-up and the dial.
			s.t, err = ts.openTunnel(ctx, b, nil, nil)
		}
		return err
	})
	ts.dialled(ctx, err)
	cancel()
	s.err = err
	ts.mu.Lock()
	switch {
	case ts.closed:
		s.err = fault.ErrShuttingDown
	case ts.slots[b.name] != s:
		s.err = errDropped
	}
	s.cancel(nil)
	if s.err != nil && ts.slots[b.name] == s {
		delete(ts.slots, b.name)
	}
	// Under the lock: who holds it sees each slot either filled or still without a
	// tunnel, and can take it away in either case.
	close(s.ready)
	ts.mu.Unlock()
	if err != nil {
		return
	}
	if s.err != nil {
		s.t.cut()
		return
	}
	<-s.t.conn.dead
	ts.forget(b.name, s)
	s.t.cut()
}

func (ts *tunnels) forget(name string, s *slot) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.slots[name] == s {
		delete(ts.slots, name)
	}
}

// live returns the open tunnels.
func (ts *tunnels) live() []*tunnel {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	list := make([]*tunnel, 0, len(ts.slots))
	for _, s := range ts.slots {
		select {
		case <-s.ready:
			if s.err == nil {
				list = append(list, s.t)
			}
		default:
		}
	}
	return list
}

// peek returns the sandbox's open tunnel, or nil. It is not to be released and
// only good for a look.
func (ts *tunnels) peek(name string) *tunnel {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	s, ok := ts.slots[name]
	if !ok {
		return nil
	}
	select {
	case <-s.ready:
		return s.t
	default:
		return nil
	}
}

// errDropped is for those who wait for a tunnel to a sandbox that is gone.
// Another look tells them so.
var errDropped = fault.AgentUnavailable(errors.New("the sandbox was stopped while it was dialled"))

// drop cuts the sandbox's tunnel, if there is one, and ends an attempt to open
// it: what would be reached is gone.
func (ts *tunnels) drop(name string) {
	ts.mu.Lock()
	s, ok := ts.slots[name]
	delete(ts.slots, name)
	ready := false
	if ok {
		select {
		case <-s.ready:
			ready = true
		default:
			s.cancel(errDropped)
		}
	}
	ts.mu.Unlock()
	if ready && s.err == nil {
		s.t.cut()
	}
}

// sweep closes tunnels that nobody has used for a while.
func (ts *tunnels) sweep(now time.Time) {
	for _, t := range ts.live() {
		if ts.retire(t, now) {
			t.cut()
		}
	}
}

// retire takes an unused tunnel out of its slot, so that no call can get it
// any more.
func (ts *tunnels) retire(t *tunnel, now time.Time) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t.users.Load() > 0 || t.looks.Load() > 0 || now.Sub(time.Unix(0, t.lastUsed.Load())) < ts.timing.TunnelIdle {
		return false
	}
	if s := ts.slots[t.box.name]; s != nil && s.t == t {
		delete(ts.slots, t.box.name)
	}
	return true
}

// close cuts every tunnel and refuses new ones.
func (ts *tunnels) close() {
	ts.mu.Lock()
	ts.closed = true
	for _, s := range ts.slots {
		s.cancel(fault.ErrShuttingDown) // only matters while it is opened
	}
	ts.mu.Unlock()
	for _, t := range ts.live() {
		t.cut()
	}
}

// wait returns when nothing is left of any tunnel.
func (ts *tunnels) wait() { ts.open.Wait() }
