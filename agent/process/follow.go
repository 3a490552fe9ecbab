package process

import (
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"

	"github.com/sandgate/sandgate/agent/fault"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

// startDelay is how long `started` waits for an event to be sent along. A short
// command then costs one write in place of three.
const startDelay = 2 * time.Millisecond

// follower sends one command's events to one caller. Execute and Attach have the same
// events, with the same fields, so it sends an ExecuteResponse to either.
type follower struct {
	command  *command
	stream   grpc.ServerStream
	position int64
	joined   bool
	until    sandboxv1.FollowUntil
	stall    *time.Timer
	reader   *streaming.Reader
}

// run sends `started`, the output from the position on, and `exited`. The caller
// must have called attach.
func (f *follower) run() error {
	c, ctx := f.command, f.stream.Context()
	s := c.service
	defer func() { c.detach(s.cfg.Disconnected(ctx)) }()
	brief := f.until != sandboxv1.FollowUntil_FOLLOW_UNTIL_STREAMS_END
	r, err := c.log.NewReader(f.position, brief)
	if err != nil {
		_, end := c.log.Range()
		if errors.Is(err, streaming.ErrPosition) {
			return positionInvalid(f.position, end)
		}
		return execNotFound(c.id)
	}
	f.reader = r
	defer r.Close()
	// Sending blocks until the caller reads. A caller that reads nothing for too
	// long is dropped, unless the command waits for it as for a pipe.
	f.stall = time.AfterFunc(s.cfg.StallTimeout, func() { s.recovery.Guard("a reader's stall timer", f.stalled) })
	f.stall.Stop()
	defer f.stall.Stop()

	if err := f.begin(); err != nil {
		return err
	}
	chunk, err := r.Next(ctx, streaming.LargeChunk)
	for {
		switch {
		case err == nil && chunk.Gap > 0:
			err = f.send(&sandboxv1.ExecuteResponse{Event: &sandboxv1.ExecuteResponse_Gap{
				Gap: &sandboxv1.Gap{Start: chunk.Position, End: chunk.Position + chunk.Gap},
			}})
		case err == nil:
			f.stall.Reset(s.cfg.StallTimeout)
			err = f.stream.SendMsg(&output{chunk: chunk})
		case errors.Is(err, io.EOF):
			return f.send(&sandboxv1.ExecuteResponse{Event: &sandboxv1.ExecuteResponse_Exited{Exited: c.exitedEvent()}})
		case errors.Is(err, streaming.ErrClosed):
			return readerTooSlow(r.Position())
		case ctx.Err() != nil:
			return fault.CallEnded(ctx)
		default:
			return fault.Internal(err)
		}
		if err != nil {
			return err
		}
		f.stall.Stop()
		chunk, err = r.Next(ctx, streaming.LargeChunk)
	}
}

// stalled is called when the caller has read nothing for StallTimeout.
func (f *follower) stalled() {
	if f.command.blocks() && f.reader.Leads() {
		f.stall.Reset(f.command.service.cfg.StallTimeout)
		return
	}
	f.reader.Close()
}

// begin sends `started`, after a short wait for the first output or the end.
func (f *follower) begin() error {
	f.stall.Stop()
	if f.reader.Waiting() {
		timer := time.NewTimer(startDelay)
		defer timer.Stop()
		select {
		case <-f.reader.Ready():
		case <-timer.C:
		case <-f.stream.Context().Done():
		}
	}
	if err := f.command.sendTraceParent(f.stream); err != nil {
		return err
	}
	return f.send(&sandboxv1.ExecuteResponse{Event: &sandboxv1.ExecuteResponse_Started{
		Started: f.command.startedEvent(f.position, f.joined),
	}})
}

func (f *follower) send(event *sandboxv1.ExecuteResponse) error {
	f.stall.Reset(f.command.service.cfg.StallTimeout)
	defer f.stall.Stop()
	return f.stream.SendMsg(event)
}
