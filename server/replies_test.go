package server

import (
	"bytes"
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
	"google.golang.org/protobuf/encoding/protowire"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
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
func TestOneReplyAtATime(t *testing.T) {
	const calls = 20
	r := &repliers{end: make(chan struct{})}
	r.waiting.Add(calls)
	conn := newOneReply(r)
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
		err := agentError(t.Context(), newOneReply(stalled{}).Invoke(t.Context(), "/x/y", nil, nil))
		if !errors.Is(err, errPipe) || fault.IsMisbehaved(err) || !transient(err) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(begun); took <= tunnelSilence+tunnelSignOfLife {
			t.Errorf("after %v", took)
		}
	})
}

// Many calls of a hostile agent cost what their largest replies do.
func TestManyLargeRepliesAreBounded(t *testing.T) {
	w := newWorld(t, nil)
	list := bytes.Repeat(protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), nil), 2<<20-64)
	w.provider.script.raw = protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), list)
	w.create("a")
	var failed atomic.Int32
	grown := peak(func() {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if _, err := w.client.ListProcesses(t.Context(), &sandboxv1.ListProcessesRequest{SandboxId: "a"}); err != nil {
					failed.Add(1)
				}
			})
		}
		wg.Wait()
	})
	// The agent is in this process: its copies count, too.
	t.Logf("the heap grew by %d MiB", grown>>20)
	if grown > 192<<20 || failed.Load() != 8 {
		t.Errorf("the heap grew by %d MiB, %d of 8 failed", grown>>20, failed.Load())
	}
}

// FuzzAgentReply: whatever an agent replies, the call ends, with a reason or a
// reply, and the server goes on.
func FuzzAgentReply(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0x0a, 0x00})
	f.Add([]byte{0x0a, 0x04, 0x0a, 0x02, 0x0a, 0x00})
	f.Add([]byte{0x0b, 0x0c})
	f.Add(bytes.Repeat([]byte{0x0a, 0x00}, 1000))
	f.Fuzz(func(t *testing.T, raw []byte) {
		w := newWorld(t, func(c *Config) { c.Timing.Reattach = 1 })
		w.provider.script.raw = raw
		w.provider.script.stat = func(*agentv1.StatFileRequest) (*agentv1.StatFileResponse, error) {
			reply := new(agentv1.StatFileResponse)
			reply.ProtoReflect().SetUnknown(raw)
			return reply, nil
		}
		w.create("a")
		for _, call := range []func() error{
			func() error {
				return call1(w.client.ListProcesses(t.Context(), &sandboxv1.ListProcessesRequest{SandboxId: "a"}))
			},
			func() error {
				return call1(w.client.StatFile(t.Context(), &sandboxv1.StatFileRequest{SandboxId: "a", Path: "/x"}))
			},
		} {
			if err := call(); err != nil {
				if _, got := reason(t, err); got != "AGENT_MISBEHAVED" {
					t.Errorf("got %v", err)
				}
			}
		}
	})
}
