package server

import (
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/streaming"
)

// relay checks and passes on one stream of events. It returns nil when `exited`
// was passed on and the stream ended properly.
func (f *follower) relay(in grpc.ClientStream, t *agentconn.Conn, cancel func()) error {
	seq := streaming.ResumeSequence(f.position)
	var fr agentconn.Frame
	for {
		if err := in.RecvMsg(&fr); err != nil {
			if errors.Is(err, io.EOF) {
				return fault.Misbehaved("a stream that ended without an end of the command")
			}
			return err
		}
		ended, err := f.event(&fr, &seq, t)
		fr.Free()
		if err != nil {
			return err
		}
		f.retry.Restart()
		f.mended(mended)
		if ended {
			return agentconn.ExpectEnd(in, cancel)
		}
	}
}

// event checks one event and passes it on.
func (f *follower) event(fr *agentconn.Frame, seq *streaming.Sequence, t *agentconn.Conn) (bool, error) {
	field, content, err := fr.Parse()
	if err != nil {
		return false, fault.Misbehaved("%w", err)
	}
	if field == agentconn.FieldOutput {
		o, err := content.Output()
		if err == nil {
			err = seq.Output(o.Position, o.Size)
		}
		if err != nil {
			return false, fault.Misbehaved("%w", err)
		}
		if err := f.send(fr); err != nil {
			return false, err
		}
		f.position = seq.Position()
		f.call.bytes.Add(int64(o.Size))
		return false, nil
	}
	var m sandboxv1.ExecuteResponse
	if err := fr.Decode(&m); err != nil {
		return false, fault.Misbehaved("%w", err)
	}
	switch e := m.GetEvent().(type) {
	case *sandboxv1.ExecuteResponse_Started:
		return false, f.onStarted(e.Started, seq, t, &m)
	case *sandboxv1.ExecuteResponse_Gap:
		if err := seq.Gap(e.Gap.GetStart(), e.Gap.GetEnd()); err != nil {
			return false, fault.Misbehaved("%w", err)
		}
		if err := f.send(&m); err != nil {
			return false, err
		}
		f.position = seq.Position()
		return false, nil
	case *sandboxv1.ExecuteResponse_Exited:
		if err := checkExited(e.Exited, seq); err != nil {
			return false, err
		}
		return true, f.sendExited(&m, e.Exited)
	default:
		return false, fault.Misbehaved("an event of kind %d", field)
	}
}

func (f *follower) onStarted(e *sandboxv1.Started, seq *streaming.Sequence, t *agentconn.Conn, m *sandboxv1.ExecuteResponse) error {
	if err := seq.Started(); err != nil {
		return fault.Misbehaved("%w", err)
	}
	switch {
	case e.GetExecId() != f.execID:
		return fault.Misbehaved("the start of command %q instead of %q", fault.Bounded(e.GetExecId()), f.execID)
	case e.GetIncarnation() != t.Incarnation:
		return fault.Misbehaved("the start of incarnation %q in %q", fault.Bounded(e.GetIncarnation()), t.Incarnation)
	case e.GetPosition() != seq.Position():
		return fault.Misbehaved("a start at position %d instead of %d", e.GetPosition(), seq.Position())
	}
	if f.started {
		return nil
	}
	if err := f.send(m); err != nil {
		return err
	}
	f.started = true
	if !f.since.IsZero() {
		f.s.metrics.startSeconds.Observe(time.Since(f.since).Seconds())
	}
	return nil
}

func checkExited(e *sandboxv1.Exited, seq *streaming.Sequence) error {
	if err := seq.Exited(); err != nil {
		return fault.Misbehaved("%w", err)
	}
	_, known := sandboxv1.ExitReason_name[int32(e.GetReason())]
	switch {
	case !known || e.GetReason() == sandboxv1.ExitReason_EXIT_REASON_UNSPECIFIED:
		return fault.Misbehaved("the exit reason %d", e.GetReason())
	case (e.ExitCode != nil) != (e.GetReason() == sandboxv1.ExitReason_EXIT_REASON_EXITED):
		return fault.Misbehaved("an exit code with the reason %s, or none", e.GetReason())
	// What a background child wrote after the command's end comes after the end's
	// position; this stream ends where it ends.
	case e.GetOutputOpen() && e.GetPosition() < seq.Position():
		e.Position = seq.Position()
	case e.GetPosition() != seq.Position():
		return fault.Misbehaved("an end at position %d instead of %d", e.GetPosition(), seq.Position())
	}
	return nil
}
