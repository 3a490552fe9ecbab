package process

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sandgate/sandgate/agent/history"
	"github.com/sandgate/sandgate/agent/tree"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

// The id of a command that the history dropped early does not start a new command.
func TestForgottenIDStartsNothing(t *testing.T) {
	s := &Service{ended: history.New(t.TempDir()), commands: map[string]*command{}}
	defer s.ended.Close()
	id := func(i int) string { return fmt.Sprintf("id%05d", i) }
	claim := func(id string) (bool, error) {
		r := shell("true")
		r.ExecId = id
		_, isNew, err := s.claim(context.Background(), r, nil)
		return isNew, err
	}
	now := time.Now()
	log := streaming.NewLog(streaming.Options{})
	const kept, more = 10_000, 50 // what the history keeps, and more
	for i := range kept + more {
		s.ended.Add(history.Encode(history.Command{
			ID: id(i), End: now, Retention: history.Retention, Exited: &sandboxv1.Exited{}, Log: log, Tree: tree.Empty{},
		}))
		s.ended.Trim(now)
	}
	for i := range more {
		if _, err := claim(id(i)); status.Code(err) != codes.NotFound {
			t.Fatalf("id %d: %v", i, err)
		}
	}
	if _, err := s.find(id(0)); status.Code(err) != codes.NotFound {
		t.Fatal(err)
	}
	// An id whose retention ended is free again.
	s.ended.Trim(now.Add(history.Retention))
	if isNew, err := claim(id(kept)); err != nil || !isNew {
		t.Fatalf("an id whose retention ended: %v, %v", isNew, err)
	}
}

// A command whose start took longer than Stop waits for it is killed.
func TestStartThatOutlastsStop(t *testing.T) {
	s, _, _ := newTestService(t)
	ctx, r, call := testContext(t), shell("sleep 3600"), &agentv1.CallContext{}
	r.Detach = true
	c, _, err := s.claim(ctx, r, call.GetLimits())
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.stopping = true // as Stop leaves it
	s.mu.Unlock()
	err = s.startCommand(ctx, c, r, call)
	if s.setReady(c, err); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.drained:
	case <-ctx.Done():
		t.Fatal("it runs on")
	}
	if got := c.exitedEvent().GetReason(); got != sandboxv1.ExitReason_EXIT_REASON_SANDBOX_STOPPED {
		t.Errorf("it ended with %v", got)
	}
}
