package agent

import (
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

// startDelay is how long `started` waits for something to go with it: a short
// command then costs one write instead of three.
const startDelay = 2 * time.Millisecond

// follower sends one command to one caller.
type follower struct {
	command  *command
	stream   grpc.ServerStream
	position int64
	joined   bool
	until    sandboxv1.FollowUntil
	wrap     func(event proto.Message) proto.Message
	stall    *time.Timer
	reader   *streaming.Reader
}

// run sends `started`, the output from the position on, and `exited`. The
// caller has counted the follower by attach.
func (f *follower) run() error {
	c, ctx := f.command, f.stream.Context()
	defer func() { c.detach(pipeBroke(ctx)) }()
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
	// Sending waits for the caller. One that takes nothing for too long is
	// dropped, unless it is the command's pipe.
	f.stall = time.AfterFunc(c.agent.cfg.StallTimeout, func() { c.agent.recovery.guard("a reader's stall timer", f.stalled) })
	f.stall.Stop()
	defer f.stall.Stop()

	if err := f.begin(); err != nil {
		return err
	}
	chunk, err := r.Next(ctx, streaming.LargeChunk)
	for {
		switch {
		case err == nil && chunk.Gap > 0:
			err = f.send(&sandboxv1.Gap{Start: chunk.Position, End: chunk.Position + chunk.Gap})
		case err == nil:
			f.stall.Reset(c.agent.cfg.StallTimeout)
			err = f.stream.SendMsg(&output{chunk: chunk})
		case errors.Is(err, io.EOF):
			return f.send(c.agent.exitOf(c))
		case errors.Is(err, streaming.ErrClosed):
			return readerTooSlow(r.Position())
		case ctx.Err() != nil:
			return callEnded(ctx)
		default:
			return internal(err)
		}
		if err != nil {
			return err
		}
		f.stall.Stop()
		chunk, err = r.Next(ctx, streaming.LargeChunk)
	}
}

// stalled is called when the caller has taken nothing for StallTimeout.
func (f *follower) stalled() {
	if f.command.waits() && f.reader.Leads() {
		f.stall.Reset(f.command.agent.cfg.StallTimeout)
		return
	}
	f.reader.Close()
}

// begin waits a moment for the first output or the end, and sends `started`.
func (f *follower) begin() error {
	f.stall.Stop()
	if !f.reader.Waiting() {
		return f.send(f.command.started(f.position, f.joined))
	}
	timer := time.NewTimer(startDelay)
	defer timer.Stop()
	select {
	case <-f.reader.Ready():
	case <-timer.C:
	case <-f.stream.Context().Done():
	}
	return f.send(f.command.started(f.position, f.joined))
}

func (f *follower) send(event proto.Message) error {
	f.stall.Reset(f.command.agent.cfg.StallTimeout)
	defer f.stall.Stop()
	return f.stream.SendMsg(f.wrap(event))
}

func wrapExecute(event proto.Message) proto.Message {
	switch e := event.(type) {
	case *sandboxv1.Started:
		return &agentv1.ExecuteResponse{Event: &agentv1.ExecuteResponse_Started{Started: e}}
	case *sandboxv1.Gap:
		return &agentv1.ExecuteResponse{Event: &agentv1.ExecuteResponse_Gap{Gap: e}}
	case *sandboxv1.Exited:
		return &agentv1.ExecuteResponse{Event: &agentv1.ExecuteResponse_Exited{Exited: e}}
	}
	panic("agent: unknown event")
}

func wrapAttach(event proto.Message) proto.Message {
	switch e := event.(type) {
	case *sandboxv1.Started:
		return &agentv1.AttachResponse{Event: &agentv1.AttachResponse_Started{Started: e}}
	case *sandboxv1.Gap:
		return &agentv1.AttachResponse{Event: &agentv1.AttachResponse_Gap{Gap: e}}
	case *sandboxv1.Exited:
		return &agentv1.AttachResponse{Event: &agentv1.AttachResponse_Exited{Exited: e}}
	}
	panic("agent: unknown event")
}
