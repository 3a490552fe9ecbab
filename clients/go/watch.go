package sandgate

import (
	"context"
	"errors"
	"io"
	"iter"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

type (
	// SandboxEvent is a change of one sandbox.
	SandboxEvent = sandboxv1.SandboxEvent
	// EventType is what happened to a sandbox.
	EventType = sandboxv1.EventType
	// EventReason is why it happened.
	EventReason = sandboxv1.EventReason
)

// Types of events.
const (
	EventCreated      = sandboxv1.EventType_EVENT_TYPE_CREATED
	EventStateChanged = sandboxv1.EventType_EVENT_TYPE_STATE_CHANGED
	EventExpiring     = sandboxv1.EventType_EVENT_TYPE_EXPIRING
	EventEnded        = sandboxv1.EventType_EVENT_TYPE_ENDED
	// EventResync reports that events are missing: list the sandboxes.
	EventResync = sandboxv1.EventType_EVENT_TYPE_RESYNC
)

// WatchRequest selects events. The zero value selects all from now on.
type WatchRequest struct {
	// Cursor is [Watched.Cursor] of the last event that was handled: the watch continues
	// after it. Empty: from now on.
	Cursor string
	// Templates of the sandboxes. Empty: all.
	Templates []string
	// Labels that a sandbox must have, all of them.
	Labels map[string]string
	// Types of events. Empty: all. [EventResync] always comes.
	Types []EventType
}

// Watched is an event, and where to continue after it.
type Watched struct {
	// Event may come more than once, with the same id.
	Event *SandboxEvent
	// Cursor is for [WatchRequest.Cursor], also of another client.
	Cursor string
}

// Watch yields events of the caller's sandboxes until ctx ends or an error, which it
// yields last. It reconnects transparently: after a broken connection or a restart of the
// server it continues after the last event, and retries for [WithReconnectTimeout] (60 s).
func (c *Client) Watch(ctx context.Context, r WatchRequest) iter.Seq2[Watched, error] {
	return func(yield func(Watched, error) bool) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		request := &sandboxv1.WatchSandboxesRequest{Cursor: r.Cursor, Templates: r.Templates, Labels: r.Labels, Types: r.Types}
		retry := c.retry(c.retryWindow)
		for {
			stream, err := c.stub.WatchSandboxes(ctx, request)
			for err == nil {
				var reply *sandboxv1.WatchSandboxesResponse
				if reply, err = stream.Recv(); err != nil {
					break
				}
				retry = c.retry(c.retryWindow)
				request.Cursor = reply.GetCursor()
				if e := reply.GetEvent(); e != nil && !yield(Watched{e, request.GetCursor()}, nil) {
					return
				}
			}
			if errors.Is(err, io.EOF) && retry.pause(ctx, err) { // of a proxy: no server ends a watch so
				continue
			}
			if !retry.again(ctx, err) {
				yield(Watched{Cursor: request.GetCursor()}, err)
				return
			}
		}
	}
}
