//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// eventTime bounds the time until a watch has an event: the server notices what it did
// not record itself within a minute.
const eventTime = 90 * time.Second

// tenant is a principal with a connection, sandboxes and a watch of its own. One worker
// makes its calls, except for the watch.
type tenant struct {
	name    string
	client  *sandgate.Client
	boxes   []*box
	created int

	begun  chan struct{} // closed when the watch has begun
	news   chan struct{} // has a value after new events
	mu     sync.Mutex
	seen   map[string]map[sandgate.EventType]bool // by sandbox
	resync bool
	ended  map[string]int // deleted sandboxes, with the number of kills before their creation
}

// box is a sandbox and what its files must hold.
type box struct {
	tenant       *tenant
	id           string
	handle       *sandgate.Sandbox
	text, binary [2]*content
	kills        int  // of the server before it was created
	unknown      bool // the outcome of its last call is unknown
}

// path returns the path of a file.
func (b *box) path(h *host, kind string, slot int) string {
	return fmt.Sprintf("%s/%s-%d", h.files(b.id), kind, slot)
}

// newTenant connects, and returns when a watch has begun, which lasts until ctx ends.
func newTenant(ctx context.Context, h *host, i int, t *tally, watches *sync.WaitGroup) (*tenant, error) {
	n := &tenant{
		name: tenantName(i), begun: make(chan struct{}), news: make(chan struct{}, 1),
		seen: make(map[string]map[sandgate.EventType]bool), ended: make(map[string]int),
	}
	begun := sync.OnceFunc(func() { close(n.begun) })
	watched := func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		stream, err := streamer(ctx, desc, conn, method, opts...)
		if err == nil && strings.HasSuffix(method, "/WatchSandboxes") {
			stream = firstMessage{stream, begun}
		}
		return stream, err
	}
	var err error
	n.client, err = sandgate.NewClient(ctx, sandgate.WithAddress(h.server.Address), sandgate.WithToken(h.tokens[i]),
		sandgate.WithDialOptions(grpc.WithChainStreamInterceptor(watched)))
	if err != nil {
		return nil, err
	}
	// A client retries only once a server has answered.
	if _, err := n.client.ServerInfo(ctx); err != nil {
		return n, err
	}
	watches.Go(func() { n.watch(ctx, t) })
	select {
	case <-n.begun:
		return n, nil
	case <-ctx.Done():
		return n, context.Cause(ctx)
	case <-time.After(maxCallTime):
		return n, errors.New("the watch has not begun")
	}
}

// firstMessage calls a function for each message, of which the first one of a watch has
// no event, so that the client does not yield it.
type firstMessage struct {
	grpc.ClientStream
	received func()
}

// RecvMsg implements grpc.ClientStream.
func (s firstMessage) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil {
		s.received()
	}
	return err
}

// watch notes the events of the tenant's sandboxes until ctx ends.
func (n *tenant) watch(ctx context.Context, t *tally) {
	for w, err := range n.client.Watch(ctx, sandgate.WatchRequest{}) {
		if err != nil {
			if ctx.Err() == nil {
				t.fail(fmt.Errorf("WatchSandboxes of %s: %w", n.name, err))
			}
			return
		}
		t.events.Add(1)
		id := w.Event.GetSandboxId()
		n.mu.Lock()
		switch {
		case w.Event.GetType() == sandgate.EventResync:
			n.resync = true
		case !strings.HasPrefix(id, n.name+"-"):
			t.fail(fmt.Errorf("WatchSandboxes of %s: an event of the sandbox %s", n.name, id))
		case n.seen[id] == nil:
			n.seen[id] = make(map[sandgate.EventType]bool)
			fallthrough
		default:
			n.seen[id][w.Event.GetType()] = true
		}
		n.mu.Unlock()
		select {
		case n.news <- struct{}{}:
		default:
		}
	}
}

// awaitEvents waits until the watch has seen each sandbox created and ended, of those
// that lived since the last kill of the server. A watch that was told to list the
// sandboxes again may miss some.
func (n *tenant) awaitEvents(ctx context.Context, kills int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, eventTime, errors.New("they did not come"))
	defer cancel()
	for {
		var missing []string
		n.mu.Lock()
		for id, before := range n.ended {
			complete := n.seen[id][sandgate.EventCreated] && n.seen[id][sandgate.EventEnded]
			if before == kills && !n.resync && !complete {
				missing = append(missing, id)
			}
		}
		n.mu.Unlock()
		if len(missing) == 0 {
			return nil
		}
		select {
		case <-n.news:
		case <-ctx.Done():
			return fmt.Errorf("WatchSandboxes of %s: no event of the creation or the end of %v: %w", n.name, missing, context.Cause(ctx))
		}
	}
}
