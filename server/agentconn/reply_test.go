package agentconn

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sandgate/sandgate/server/fault"
)

// repliers is a connection whose replies have headers at once and end when told.
type repliers struct {
	grpc.ClientConnInterface
	receiving atomic.Int32
	most      atomic.Int32
	waiting   sync.WaitGroup // of headers
	end       chan struct{}
}

func (r *repliers) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return &replier{r: r}, nil
}

type replier struct {
	grpc.ClientStream
	r *repliers
}

func (s *replier) SendMsg(any) error { return nil }
func (s *replier) Header() (metadata.MD, error) {
	s.r.waiting.Done()
	return nil, nil
}

func (s *replier) RecvMsg(any) error {
	n := s.r.receiving.Add(1)
	s.r.most.Store(max(n, s.r.most.Load()))
	<-s.r.end
	s.r.receiving.Add(-1)
	return nil
}

// All calls wait for their headers, and one reply is taken in at a time.
func TestOneReplyIsTakenInAtATime(t *testing.T) {
	const calls = 20
	r := &repliers{end: make(chan struct{})}
	r.waiting.Add(calls)
	conn := newBoundedReplies(r)
	var wg sync.WaitGroup
	for range calls {
		wg.Go(func() {
			if err := conn.Invoke(t.Context(), "/x/y", nil, nil); err != nil {
				t.Error(err)
			}
		})
	}
	r.waiting.Wait()
	close(r.end)
	wg.Wait()
	if n := r.most.Load(); n != 1 {
		t.Errorf("%d replies at once", n)
	}
}

// stalled has headers at once and no reply until its call ends.
type stalled struct{ grpc.ClientConnInterface }

func (stalled) NewStream(ctx context.Context, _ *grpc.StreamDesc, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	return stalledReply{ctx: ctx}, nil
}

type stalledReply struct {
	grpc.ClientStream
	ctx context.Context
}

func (stalledReply) SendMsg(any) error            { return nil }
func (stalledReply) Header() (metadata.MD, error) { return nil, nil }
func (s stalledReply) RecvMsg(any) error {
	<-s.ctx.Done()
	return status.FromContextError(s.ctx.Err()).Err()
}

// A reply that stalls is a broken connection and no breach of the protocol, and
// the connection's own signs of life find a dead one before.
func TestSlowReplyIsNoMisbehaviour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		err := Error(t.Context(), newBoundedReplies(stalled{}).Invoke(t.Context(), "/x/y", nil, nil))
		if !errors.Is(err, ErrBroken) || fault.IsMisbehaved(err) || !IsTransient(err) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(begun); took <= keepaliveTime+keepaliveTimeout {
			t.Errorf("after %v", took)
		}
	})
}
