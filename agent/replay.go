package agent

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/sandgate/sandgate/agent/fault"
	"github.com/sandgate/sandgate/agent/protocol"
)

// Answers are kept for replayTime, at most replayCalls of them: those that may have
// been lost with a connection.
const (
	replayCalls = 512
	replayTime  = 2 * time.Minute
)

// replay keeps the answers of calls with an id.
type replay struct {
	mu    sync.Mutex
	byID  map[string]*answer
	order []*answer // oldest first
}

type answer struct {
	key   string
	done  chan struct{} // closed once the other fields are set
	reply any
	err   error
	since time.Time
	void  bool // the call was interrupted before it did anything
}

func newReplay() *replay { return &replay{byID: map[string]*answer{}} }

// intercept is a grpc.UnaryServerInterceptor.
func (r *replay) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ids := metadata.ValueFromIncomingContext(ctx, protocol.CallIDKey)
	if len(ids) != 1 || ids[0] == "" {
		return handler(ctx, req)
	}
	key := info.FullMethod + " " + ids[0]
	for {
		a, first := r.claim(key)
		if first {
			return r.run(ctx, a, req, handler)
		}
		select {
		case <-a.done:
		case <-ctx.Done():
			return nil, fault.CallEnded(ctx)
		}
		if !a.void {
			return a.reply, a.err
		}
	}
}

func (r *replay) run(ctx context.Context, a *answer, req any, handler grpc.UnaryHandler) (any, error) {
	a.void = true // in case the handler does not return
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if a.void {
			delete(r.byID, a.key)
		}
		a.since = time.Now()
		close(a.done)
	}()
	a.reply, a.err = handler(ctx, req)
	// The error of an interrupted call is not the call's answer.
	a.void = a.err != nil && ctx.Err() != nil
	return a.reply, a.err
}

// claim returns the answer to a call, and true if the caller has to produce it.
func (r *replay) claim(key string) (*answer, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.byID[key]; a != nil {
		return a, false
	}
	now := time.Now()
	for len(r.order) > 0 && (len(r.order) >= replayCalls || r.order[0].expired(now)) {
		if a := r.order[0]; r.byID[a.key] == a {
			delete(r.byID, a.key)
		}
		r.order[0] = nil
		r.order = r.order[1:]
	}
	a := &answer{key: key, done: make(chan struct{})}
	r.byID[key] = a
	r.order = append(r.order, a)
	return a, true
}

func (a *answer) expired(now time.Time) bool {
	select {
	case <-a.done:
		return now.Sub(a.since) > replayTime
	default:
		return false
	}
}
