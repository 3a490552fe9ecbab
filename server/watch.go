package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/events"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/policy"
	"github.com/sandgate/sandgate/server/wire"
)

// defaultWatchHeartbeat is the time after which a watch without events gets a cursor, so
// that proxies keep the stream open and the cursor does not grow old.
const defaultWatchHeartbeat = 30 * time.Second

// maxWatchTemplates bounds the templates of one watch.
const maxWatchTemplates = 100

var errWatchEnds = fault.New(sandboxv1.ErrorReason_ERROR_REASON_SERVER_SHUTTING_DOWN,
	"the server is shutting down; watch again from the last cursor, at another replica or after the restart")

// WatchSandboxes implements SandboxService.
func (s *Server) WatchSandboxes(req *sandboxv1.WatchSandboxesRequest, stream grpc.ServerStreamingServer[sandboxv1.WatchSandboxesResponse]) error {
	ctx := stream.Context()
	filter, err := watchFilter(ctx, req)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	halted, release := s.untilHalt()
	defer release()
	context.AfterFunc(halted, func() { cancel(errWatchEnds) })
	reader, err := s.journal.Read(ctx, req.GetCursor())
	switch {
	case errors.Is(err, events.ErrCursor):
		var v policy.Violations
		v.Add("cursor", "must be one that WatchSandboxes has sent, or empty")
		return v.Err()
	case err != nil:
		return err
	}
	defer reader.Close()
	if err := stream.Send(&sandboxv1.WatchSandboxesResponse{Cursor: reader.Cursor()}); err != nil {
		return err
	}
	for sent := time.Now(); ; {
		// Events of other tenants, too, let the cursor grow old.
		wait, stop := context.WithDeadlineCause(ctx, sent.Add(s.cfg.watchHeartbeat), errWatchIdle)
		batch, err := reader.Next(wait)
		stop()
		if err != nil && !errors.Is(err, errWatchIdle) {
			return err
		}
		for _, e := range batch {
			if !filter.Matches(e) {
				continue
			}
			sent = time.Now()
			if err := stream.Send(&sandboxv1.WatchSandboxesResponse{Cursor: reader.CursorAt(e), Event: eventMessage(e)}); err != nil {
				return err
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
		if time.Since(sent) >= s.cfg.watchHeartbeat {
			sent = time.Now()
			if err := stream.Send(&sandboxv1.WatchSandboxesResponse{Cursor: reader.Cursor()}); err != nil {
				return err
			}
		}
	}
}

var errWatchIdle = errors.New("no event for a while")

// watchFilter checks a request. The caller's tenant and scope are always part of the
// filter.
func watchFilter(ctx context.Context, req *sandboxv1.WatchSandboxesRequest) (events.Filter, error) {
	p := call.Of(ctx).Principal
	f := events.Filter{Tenants: []string{p.Tenant}, IDPrefix: p.Scope.IDPrefix, Templates: req.GetTemplates(), Labels: req.GetLabels()}
	var v policy.Violations
	v.Labels("labels", req.GetLabels())
	if len(req.GetTemplates()) > maxWatchTemplates {
		v.Add("templates", "must be at most %d", maxWatchTemplates)
	}
	for i, asked := range req.GetTypes() {
		t, ok := eventTypes[asked]
		if !ok {
			v.Add(fmt.Sprintf("types[%d]", i), "%d is not a known type", asked)
		}
		f.Types = append(f.Types, t)
	}
	return f, v.Err()
}

var eventTypes = map[sandboxv1.EventType]events.Type{
	sandboxv1.EventType_EVENT_TYPE_CREATED:       events.Created,
	sandboxv1.EventType_EVENT_TYPE_STATE_CHANGED: events.StateChanged,
	sandboxv1.EventType_EVENT_TYPE_EXPIRING:      events.Expiring,
	sandboxv1.EventType_EVENT_TYPE_ENDED:         events.Ended,
	sandboxv1.EventType_EVENT_TYPE_RESYNC:        events.Resync,
}

func eventMessage(e events.Event) *sandboxv1.SandboxEvent {
	return &sandboxv1.SandboxEvent{
		EventId: e.ID, Type: sandboxv1.EventType(sandboxv1.EventType_value["EVENT_TYPE_"+strings.ToUpper(string(e.Type))]),
		Time: wire.Timestamp(e.Time), SandboxId: e.SandboxID, Incarnation: e.Incarnation, Template: e.Template, Labels: e.Labels,
		State:     wire.State(e.State),
		Reason:    sandboxv1.EventReason(sandboxv1.EventReason_value["EVENT_REASON_"+strings.ToUpper(string(e.Reason))]),
		Principal: e.Principal, Message: e.Message, ExpireTime: wire.Timestamp(e.ExpireTime),
	}
}

// noteEvent records what a call did to a sandbox.
func (s *Server) noteEvent(ctx context.Context, t events.Type, info providers.Info) {
	s.journal.Note(events.New(t, info, events.Requested).By(call.Of(ctx).Principal.Name))
}

// newObserver returns the part of the server that finds events which no call made.
func (s *Server) newObserver() *events.Observer {
	return events.NewObserver(events.ObserverConfig{
		Journal: s.journal, Change: s.documents, Provider: s.provider, Log: s.log, Interval: s.cfg.Timing.ReapInterval,
		Left: s.timeLeft, OnFailure: s.metrics.EventFailures.Inc,
		Idle: func(ctx context.Context, info providers.Info, idle time.Duration) (bool, error) {
			return s.reaper.CleanUp(ctx, info, &idle, true)
		},
	})
}

// timeLeft returns how much is left of a sandbox's lifetime, which has an end.
func (s *Server) timeLeft(info providers.Info) time.Duration {
	left := time.Duration(1<<63 - 1)
	if ttl := info.Spec.TTL; ttl > 0 {
		left = min(left, ttl-s.clock.Since(info.CreateTime))
	}
	if idle := info.Spec.IdleTTL; idle > 0 {
		left = min(left, idle-s.clock.Since(info.LastActivity))
	}
	return left
}

// keepJournal writes this server's events until the server halts, and then the rest.
func (s *Server) keepJournal() {
	ctx, cancel := s.untilHalt()
	defer cancel()
	s.journal.Run(ctx)
}
