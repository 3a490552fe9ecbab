package carrier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/egress"
	"github.com/sandgate/sandgate/server/limit"
)

const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = 10 * time.Second
	// firstMessage bounds the agent's first message on a new stream, and how long the
	// stream of an announced connection takes to open.
	firstMessage = 10 * time.Second
	// maxAnnouncement is the largest message about a connection, in bytes.
	maxAnnouncement = 4 << 10
	// announcementsPerSecond bounds the requests of one agent; more wait.
	announcementsPerSecond = 500
	announcementsBurst     = 1000
	// denialsPerSecond bounds the records of one sandbox about connections that were
	// denied or not opened.
	denialsPerSecond = 2
	denialsBurst     = 20
)

// errNotProxy ends the holding of a sandbox with another network mode.
var errNotProxy = errors.New("the sandbox has another network mode")

// holder holds the AcceptEgress stream of one sandbox.
type holder struct {
	carrier *Carrier
	key     agentconn.Key
	ctx     context.Context //nolint:containedctx // the holder's own life, which no caller has
	cancel  context.CancelCauseFunc
	lost    time.Time // when it became another server's, else zero; the Carrier's mu guards it
	wake    chan struct{}
	again   bool // Hold was called meanwhile; the Carrier's mu guards it
	slots   limit.Slots
	pace    *rate.Limiter // of the agent's requests
	denials *rate.Limiter
	bytes   *egress.Rate // of all connections; nil: nothing bounds them

	refreshing sync.Mutex
	routing    sync.Mutex

	mu         sync.Mutex
	stream     *announcer    // the present one, else nil
	routed     chan struct{} // closed when route has run with the present or next stream
	wasRouted  bool          // routed is closed
	rules      []byte        // the sandbox's own, as applied last
	policy     *egress.Policy
	conns      map[*egress.Conn]struct{}
	endStream  context.CancelCauseFunc // ends the present stream; nil before the first
	suppressed int64
}

func newHolder(c *Carrier, key agentconn.Key) *holder {
	h := &holder{
		carrier: c, key: key, wake: make(chan struct{}, 1), routed: make(chan struct{}), slots: limit.New(c.cfg.MaxConns),
		pace:    rate.NewLimiter(announcementsPerSecond, announcementsBurst),
		denials: rate.NewLimiter(denialsPerSecond, denialsBurst),
		conns:   make(map[*egress.Conn]struct{}),
	}
	if n := c.cfg.BytesPerSecond; n > 0 {
		h.bytes = egress.NewRate(n, n) // a second's worth at once
	}
	h.ctx, h.cancel = context.WithCancelCause(c.ctx)
	return h
}

// run holds the stream, and opens it again after it broke.
func (h *holder) run() {
	ctx := h.ctx
	defer h.cancel(nil)
	backoff := minBackoff
	for ctx.Err() == nil {
		begun := time.Now()
		err := h.serve(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, providers.ErrNotFound), errors.Is(err, providers.ErrNotActive), errors.Is(err, errNotProxy):
			if h.carrier.leave(h) {
				return
			}
			backoff = minBackoff
			continue
		case time.Since(begun) > maxBackoff:
			backoff = minBackoff
		}
		h.carrier.cfg.Log.Debug("the stream for a sandbox's connections broke", "sandbox_id", h.key.ID, "tenant", h.key.Tenant, "error", err)
		select {
		case <-h.wake:
			backoff = minBackoff
		case <-time.After(backoff):
			backoff = min(2*backoff, maxBackoff)
		case <-ctx.Done():
		}
	}
}

// serve opens the stream and answers the agent until the stream breaks. Then the
// connections that it announced end as well.
func (h *holder) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var carried sync.WaitGroup
	defer carried.Wait()
	defer cancel(errors.New("the stream for the sandbox's connections broke"))
	h.mu.Lock()
	h.endStream = cancel // before the rules are loaded, so that a reopen after that counts
	h.mu.Unlock()
	agent, err := h.connect(ctx)
	if err != nil {
		return err
	}
	defer agent.EndInspection()
	if err := h.refresh(ctx); err != nil {
		return err
	}
	stream, err := agent.Agent.AcceptEgress(ctx, grpc.MaxCallRecvMsgSize(maxAnnouncement))
	if err != nil {
		return err
	}
	late := time.AfterFunc(firstMessage, func() { cancel(fmt.Errorf("no message within %s", firstMessage)) })
	first, err := stream.Recv()
	late.Stop()
	a := &announcer{holder: h, agent: agent, stream: stream, noRoutes: first.GetListening() == nil, listening: make(chan uint64, 1)}
	if err == nil {
		h.present(a)
		defer h.present(nil)
		carried.Go(func() { h.route(ctx) })
	}
	for err == nil {
		if err = h.pace.Wait(ctx); err != nil {
			break
		}
		var m *agentv1.AcceptEgressResponse
		if m, err = stream.Recv(); err != nil {
			break
		}
		switch m := m.GetMessage().(type) {
		case *agentv1.AcceptEgressResponse_Question:
			err = a.answer(m.Question)
		case *agentv1.AcceptEgressResponse_Connection:
			err = a.announced(ctx, &carried, m.Connection)
		case *agentv1.AcceptEgressResponse_Listening:
			a.listens(m.Listening.GetId())
		}
	}
	return agent.Error(ctx, err)
}

// connect connects to the agent, a few at a time.
func (h *holder) connect(ctx context.Context) (*agentconn.Conn, error) {
	if err := h.carrier.dials.Acquire(ctx); err != nil {
		return nil, err
	}
	defer h.carrier.dials.Release()
	return h.carrier.cfg.Agents.Inspect(ctx, h.key, nil)
}

// compile returns the sandbox's policy, or one that allows nothing.
func (h *holder) compile(spec providers.Spec) *egress.Policy {
	policy, err := h.carrier.cfg.Policy(spec)
	if err != nil {
		h.carrier.cfg.Log.Warn("the sandbox's network rules are not valid any more: all connections are denied",
			slog.String("sandbox_id", h.key.ID), slog.String("tenant", h.key.Tenant), slog.Any("error", err))
		return nil
	}
	return policy
}

// refresh applies the rules that the provider has now. The connection to the agent
// may be older than they are, and updates may come at the same time: the look and
// what follows are one step, so that the last one applies the last rules.
func (h *holder) refresh(ctx context.Context) error {
	h.refreshing.Lock()
	defer h.refreshing.Unlock()
	info, err := h.carrier.cfg.Agents.Lookup(ctx, h.key)
	if err != nil {
		return err
	}
	if info.Spec.Network != providers.NetworkProxy {
		return errNotProxy
	}
	h.apply(info.Spec)
	h.route(ctx)
	return nil
}

// present sets the stream that the agent listens to.
func (h *holder) present(a *announcer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stream = a
	if h.wasRouted {
		h.routed, h.wasRouted = make(chan struct{}), false
	}
}

// noteRouted lets those go on who wait for the routes of a stream.
func (h *holder) noteRouted(a *announcer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stream == a && !h.wasRouted {
		close(h.routed)
		h.wasRouted = true
	}
}

func (h *holder) awaitRouted() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.routed
}

// apply sets a new policy, and cuts the connections that it does not allow.
func (h *holder) apply(spec providers.Spec) {
	h.set(h.compile(spec), spec.Egress)
}

// set sets a policy, and the sandbox's own rules that it came from.
func (h *holder) set(policy *egress.Policy, rules []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.policy, h.rules = policy, rules
	for conn := range h.conns {
		if conn.Apply(policy) != nil {
			_ = conn.Close()
		}
	}
}

// reopen ends the stream, with its connections. The next one begins with the rules of
// then.
func (h *holder) reopen(cause error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.endStream != nil {
		h.endStream(fmt.Errorf("look up the sandbox: %w", cause))
	}
}

// take takes the slots that a connection needs.
func (h *holder) take() error {
	if !h.slots.TryAcquire() {
		return ErrLimit
	}
	if !h.carrier.cfg.Take(h.key.Tenant) {
		h.slots.Release()
		return ErrSharedLimit
	}
	return nil
}

func (h *holder) release() {
	h.carrier.cfg.Release(h.key.Tenant)
	h.slots.Release()
}

// stale reports whether the sandbox's own rules differ from those that apply.
func (h *holder) stale(spec providers.Spec) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !bytes.Equal(h.rules, spec.Egress)
}

// idle reports whether no connection is open.
func (h *holder) idle() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.conns) == 0
}

func (h *holder) current() *egress.Policy {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.policy
}

// add registers an open connection, which an update may cut.
func (h *holder) add(conn *egress.Conn) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := conn.Apply(h.policy); err != nil {
		return err
	}
	h.conns[conn] = struct{}{}
	return nil
}

func (h *holder) remove(conn *egress.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.conns, conn)
}

// report reports the end of a connection. Those that were not opened cost a program
// nothing, so they count like denials.
func (h *holder) report(e Ended) {
	var denied *egress.Denied
	if e.Addr == "" || errors.As(e.Err, &denied) {
		h.mu.Lock()
		if e.Unrecorded = !h.denials.Allow(); e.Unrecorded {
			h.suppressed++
		} else {
			e.Suppressed, h.suppressed = h.suppressed, 0
		}
		h.mu.Unlock()
	}
	e.Key = h.key
	h.carrier.cfg.OnEnd(e)
}
