package exec

import (
	"time"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/audit"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/tracing"
	"github.com/sandgate/sandgate/streaming"
)

// event checks one event and forwards it. It reports true for `exited`.
func (r *relay) event(fr *agentconn.Frame, seq *streaming.Sequence, c *agentconn.Conn) (bool, error) {
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
		if err := r.send(fr); err != nil {
			return false, err
		}
		r.position = seq.Position()
		r.call.Bytes.Add(int64(o.Size))
		return false, nil
	}
	var m sandboxv1.ExecuteResponse
	if err := fr.Decode(&m); err != nil {
		return false, fault.Misbehaved("%w", err)
	}
	switch e := m.GetEvent().(type) {
	case *sandboxv1.ExecuteResponse_Started:
		return false, r.onStarted(e.Started, seq, c, &m)
	case *sandboxv1.ExecuteResponse_Gap:
		if err := seq.Gap(e.Gap.GetStart(), e.Gap.GetEnd()); err != nil {
			return false, fault.Misbehaved("%w", err)
		}
		if err := r.send(&m); err != nil {
			return false, err
		}
		r.s.cfg.Metrics.Gap(e.Gap)
		r.position = seq.Position()
		return false, nil
	case *sandboxv1.ExecuteResponse_Exited:
		if err := checkExited(e.Exited, seq); err != nil {
			return false, err
		}
		return true, r.sendExited(&m, e.Exited)
	default:
		return false, fault.Misbehaved("an event of kind %d", field)
	}
}

func (r *relay) onStarted(e *sandboxv1.Started, seq *streaming.Sequence, c *agentconn.Conn, m *sandboxv1.ExecuteResponse) error {
	if err := seq.Started(); err != nil {
		return fault.Misbehaved("%w", err)
	}
	switch {
	case e.GetExecId() != r.execID:
		return fault.Misbehaved("the start of command %q instead of %q", fault.Bounded(e.GetExecId()), r.execID)
	case e.GetIncarnation() != c.Incarnation:
		return fault.Misbehaved("the start of incarnation %q in %q", fault.Bounded(e.GetIncarnation()), c.Incarnation)
	case e.GetPosition() != seq.Position():
		return fault.Misbehaved("a start at position %d instead of %d", e.GetPosition(), seq.Position())
	}
	if r.started {
		return nil
	}
	if err := r.send(m); err != nil {
		return err
	}
	r.started = true
	r.begin = nil // and with it the request
	r.call.Release()
	r.span.AddEvent("started")
	if !r.since.IsZero() {
		r.s.cfg.Metrics.StartSeconds.Observe(time.Since(r.since).Seconds())
	}
	return nil
}

// checkExited checks the agent's report of the command's end. It moves the end's
// position to that of the stream if a descendant has written more since.
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
	case e.GetOutputOpen() && e.GetPosition() < seq.Position():
		e.Position = seq.Position()
	case e.GetPosition() != seq.Position():
		return fault.Misbehaved("an end at position %d instead of %d", e.GetPosition(), seq.Position())
	}
	return nil
}

// sendExited sends the end of the command in m, and records it for the audit.
func (r *relay) sendExited(m *sandboxv1.ExecuteResponse, e *sandboxv1.Exited) error {
	m.Event = &sandboxv1.ExecuteResponse_Exited{Exited: e}
	r.call.Exited.Store(e)
	r.s.cfg.Metrics.CommandEnded(e)
	tracing.DescribeExit(r.span, e)
	if e.GetReason() == sandboxv1.ExitReason_EXIT_REASON_LOST {
		r.s.cfg.Log.Warn("command lost", "tenant", r.key.Tenant, "sandbox_id", r.key.ID, "exec_id", r.execID, "message", audit.Text(e.GetMessage(), audit.MaxText))
	}
	return r.send(m)
}

func (r *relay) send(m any) error {
	r.sendingAt.Store(r.position)
	r.sending.Store(int64(time.Since(r.call.Start)))
	err := r.out.SendMsg(m)
	r.sending.Store(0)
	if err != nil {
		return &agentconn.CallerError{Err: err}
	}
	return nil
}
