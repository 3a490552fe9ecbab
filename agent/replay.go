package agent

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// CallIDKey is the metadata of a unary call that must not be carried out twice:
// an id that the server chose. Sent again after a broken connection, the call
// gets the answer of the first time. An agent that does this has the capability
// CallIDCapability.
const (
	CallIDKey        = "sandgate-call-id"
	CallIDCapability = "call-id"
)

// Answers are kept for replayTime, and at most replayCalls of them: those that
// a connection was about to carry when it broke.
const (
	replayCalls = 512
	replayTime  = 2 * time.Minute
)

// replay remembers the answers of calls that have an id.
type replay struct {
	mu    sync.Mutex
	byID  map[string]*answer
	order []*answer // oldest first
}

type answer struct {
	key   string
	done  chan struct{} // closed when the rest is set
	reply any
	err   error
	since time.Time
	void  bool // the call was cut off before it was carried out
}

func newReplay() *replay { return &replay{byID: map[string]*answer{}} }

// intercept is a grpc.UnaryServerInterceptor.
func (r *replay) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ids := metadata.ValueFromIncomingContext(ctx, CallIDKey)
	if len(ids) != 1 || ids[0] == "" {
		return handler(ctx, req)
	}
	key := info.FullMethod + " " + ids[0]
	for {
		a, first := r.claim(key)
		if first {
			return r.carryOut(ctx, a, req, handler)
		}
		select {
		case <-a.done:
		case <-ctx.Done():
			return nil, callEnded(ctx)
		}
		if !a.void {
			return a.reply, a.err
		}
	}
}

func (r *replay) carryOut(ctx context.Context, a *answer, req any, handler grpc.UnaryHandler) (any, error) {
	a.void = true // should the handler not return
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
	// An error of a call that was cut off says nothing of the call itself.
	a.void = a.err != nil && ctx.Err() != nil
	return a.reply, a.err
}

// claim returns the answer to a call, and true when the caller has to make it.
func (r *replay) claim(key string) (*answer, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.byID[key]; a != nil {
		return a, false
	}
	now := time.Now()
	for len(r.order) > 0 && (len(r.order) >= replayCalls || r.order[0].old(now)) {
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

func (a *answer) old(now time.Time) bool {
	select {
	case <-a.done:
		return now.Sub(a.since) > replayTime
	default:
		return false
	}
}
