package sandgate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// How long the client waits when its caller has given up on a command: for the kill,
// and then for the exit status.
const (
	killTimeout = 10 * time.Second
	endTimeout  = 2 * time.Second
)

// Process follows one command. Its methods may be called from several
// goroutines, but only one may read the events.
//
// It reconnects transparently: after a broken connection it reattaches at the first
// byte that it does not have, and retries for [WithReconnectTimeout] (60 s). Meanwhile the
// command keeps running, for its disconnect grace period.
type Process struct {
	sandbox *Sandbox
	id      string
	until   FollowUntil
	owned   bool // the command is killed when its caller gives up

	// The caller's context, and the stream's, which outlives it until the command is
	// killed.
	ctx    context.Context //nolint:containedctx // A Process is a call in flight, as a gRPC stream is.
	inner  context.Context //nolint:containedctx // As ctx.
	cancel context.CancelCauseFunc
	// unhook stops watching ctx. It returns false if abort runs or ran.
	unhook  func() bool
	ended   chan struct{}
	aborted chan struct{}
	once    sync.Once

	recv     receiver
	started  *Started
	position int64
	exit     *Exited
	failure  error

	stdin       sync.Mutex
	stdinOffset int64
	stdinFailed error // of the first WriteStdin that failed
}

// Event is one event of a command: exactly one field is set.
type Event struct {
	// Output is the next piece of output.
	Output *Output
	// Gap is a range of output that was dropped before it could be read.
	Gap *Gap
	// Exited is the last event.
	Exited *Exited
}

// receiver returns the next event of a stream.
type receiver func() (reply, error)

// reply is the common part of the events of Execute and Attach.
type reply interface {
	GetStarted() *sandboxv1.Started
	GetOutput() *sandboxv1.Output
	GetGap() *sandboxv1.Gap
	GetExited() *sandboxv1.Exited
}

// receive adapts an opened stream.
func receive[R reply](stream interface{ Recv() (R, error) }, err error) (receiver, error) {
	if err != nil {
		return nil, err
	}
	return func() (reply, error) { return stream.Recv() }, nil
}

func newProcess(ctx context.Context, s *Sandbox, id string, until FollowUntil, owned bool) *Process {
	p := &Process{sandbox: s, id: id, until: until, owned: owned, ctx: ctx}
	p.ended, p.aborted = make(chan struct{}), make(chan struct{})
	p.inner, p.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	p.unhook = sync.OnceValue(context.AfterFunc(ctx, p.abort))
	return p
}

// ID returns the command's id within its sandbox.
func (p *Process) ID() string { return p.id }

// Started returns the command's first event: its process id, its start time and
// the sandbox's incarnation.
func (p *Process) Started() *Started { return p.started }

// Exit returns how the command ended, or nil while it is unknown.
func (p *Process) Exit() *Exited { return p.exit }

// Events yields the events in order, Exited last. If the command cannot be followed
// to its end, an error takes the place of Exited. A caller that leaves the loop early
// can call Events again for the rest.
func (p *Process) Events() iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for p.exit == nil {
			event, err := p.next()
			if err != nil {
				yield(Event{}, err)
				return
			}
			if !yield(event, nil) {
				return
			}
		}
	}
}

// Wait discards the rest of the output and returns how the command ended.
func (p *Process) Wait() (*Exited, error) {
	for _, err := range p.Events() {
		if err != nil {
			return p.exit, err
		}
	}
	return p.exit, nil
}

// Signal sends a signal by name, such as "SIGTERM".
func (p *Process) Signal(ctx context.Context, signal string, scope SignalScope) error {
	_, err := p.sandbox.Signal(ctx, p.id, signal, scope)
	return err
}

// Resize sets the size of the command's terminal.
func (p *Process) Resize(ctx context.Context, rows, columns int) error {
	_, err := p.sandbox.client.stub.ResizeTerminal(ctx, &sandboxv1.ResizeTerminalRequest{
		SandboxId: p.sandbox.id, ExpectedIncarnation: p.sandbox.Incarnation, ExecId: p.id,
		Size: &TerminalSize{Rows: int32(rows), Columns: int32(columns)},
	})
	return err
}

// Close detaches from the command. It kills a command that this process started, if
// it still runs and is not detached. The goroutine that reads the events must call
// it; further calls do nothing.
func (p *Process) Close() {
	switch {
	case !p.unhook():
		<-p.aborted
	case p.owned && p.failure == nil && p.exit == nil:
		p.kill()
	}
	if p.failure == nil {
		p.failure = errClosed
	}
	p.finish(p.failure)
}

var errClosed = local(ErrCallCancelled, codes.Canceled, nil, "the process was closed")

// begin opens the first stream and waits for the started event. It retries after a
// broken connection: the command's id makes that safe.
func (p *Process) begin(open func(context.Context) (receiver, error)) (*Process, error) {
	retry := p.sandbox.client.retry(p.sandbox.client.retryWindow)
	for {
		err := p.open(open)
		if err == nil {
			return p, nil
		}
		if p.ctx.Err() != nil {
			err = cancelled(p.ctx)
		} else if retry.reattach(p.ctx, err) {
			continue
		}
		p.fail(err)
		if !p.unhook() {
			<-p.aborted
		}
		return nil, err
	}
}

// open opens a stream and reads its first event.
func (p *Process) open(open func(context.Context) (receiver, error)) error {
	recv, err := open(p.inner)
	if err != nil {
		return err
	}
	first, err := recv()
	if err != nil {
		return prematureEnd(err)
	}
	started := first.GetStarted()
	if started == nil {
		return local(ErrInternal, codes.DataLoss, nil, "the server broke the protocol: the first event is not started")
	}
	if p.started == nil {
		p.started, p.position = started, started.GetPosition()
	}
	p.recv = recv
	return nil
}

// attach opens a stream at the first missing byte.
func (p *Process) attach(ctx context.Context) (receiver, error) {
	incarnation := p.sandbox.Incarnation
	if p.started != nil {
		incarnation = p.started.GetIncarnation()
	}
	stream, err := p.sandbox.client.stub.Attach(ctx, &sandboxv1.AttachRequest{
		SandboxId: p.sandbox.id, ExpectedIncarnation: incarnation, ExecId: p.id,
		Position: p.position, FollowUntil: p.until,
	})
	return receive(stream, err)
}

// next returns the next event that the caller does not have yet.
func (p *Process) next() (Event, error) {
	for p.failure == nil {
		message, err := p.recv()
		if err != nil {
			if err = p.resume(prematureEnd(err)); err != nil {
				p.fail(err)
			}
			continue
		}
		event, err := p.take(message)
		if err != nil {
			p.fail(err)
			continue
		}
		if event.Exited != nil && p.ctx.Err() != nil {
			p.fail(cancelled(p.ctx))
			continue
		}
		if event != (Event{}) {
			return event, nil
		}
	}
	return Event{}, p.failure
}

// take checks an event against the position. It returns an empty event for an unknown
// event and for output that the caller has already.
func (p *Process) take(message reply) (Event, error) {
	if out := message.GetOutput(); out != nil {
		known := p.position - out.GetPosition()
		size := int64(len(out.GetData()))
		if known < 0 {
			return Event{}, local(ErrInternal, codes.DataLoss, nil, "the server broke the protocol: output goes on at %d, expected %d", out.GetPosition(), p.position)
		}
		if known >= size {
			return Event{}, nil
		}
		if known > 0 {
			out.Position, out.Data = p.position, out.GetData()[known:]
		}
		p.position = out.GetPosition() + int64(len(out.GetData()))
		return Event{Output: out}, nil
	}
	if gap := message.GetGap(); gap != nil {
		if gap.GetEnd() <= p.position {
			return Event{}, nil
		}
		gap.Start = max(gap.GetStart(), p.position)
		p.position = gap.GetEnd()
		return Event{Gap: gap}, nil
	}
	if exited := message.GetExited(); exited != nil {
		p.exit = exited
		p.unhook()
		p.finish(nil)
		return Event{Exited: exited}, nil
	}
	return Event{}, nil
}

// resume reattaches after the stream broke with err.
func (p *Process) resume(err error) error {
	retry := p.sandbox.client.retry(p.sandbox.client.retryWindow)
	for {
		if p.ctx.Err() != nil {
			return cancelled(p.ctx)
		}
		if !retry.reattach(p.ctx, err) {
			if p.ctx.Err() != nil {
				return cancelled(p.ctx)
			}
			if errors.Is(err, ErrUnavailable) {
				return p.connectionLost(err)
			}
			return err
		}
		if err = p.open(p.attach); err == nil {
			return nil
		}
	}
}

// connectionLost returns the error of a stream that could not be resumed.
func (p *Process) connectionLost(cause error) error {
	return &Error{
		Code: codes.Unavailable, class: ErrConnectionLost, cause: cause,
		Message: fmt.Sprintf("the connection was lost and did not come back; the command %s may still run, "+
			"its output goes on at position %d: %v", p.id, p.position, cause),
		Metadata: map[string]string{"exec_id": p.id, "position": strconv.FormatInt(p.position, 10)},
	}
}

// prematureEnd converts io.EOF before the last event to an error.
func prematureEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return local(ErrUnavailable, codes.Unavailable, err, "the stream ended before the command did")
	}
	return err
}

// abort kills the command after its caller has given up, then ends the stream.
func (p *Process) abort() {
	defer close(p.aborted)
	if p.owned {
		p.kill()
		select {
		case <-p.ended:
		case <-time.After(endTimeout):
		}
	}
	p.finish(context.Cause(p.ctx))
}

// kill kills the command and all its descendants, if the server can be reached. It
// depends neither on the caller's context, which has ended, nor on the stream's,
// which may end.
func (p *Process) kill() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), killTimeout)
	defer cancel()
	ended := p.ended
	for {
		err := p.Signal(ctx, "SIGKILL", sandboxv1.SignalScope_SIGNAL_SCOPE_TREE)
		broken := errors.Is(err, ErrUnavailable) && p.sandbox.client.reached.Load()
		if !broken && !errors.Is(err, ErrExecNotFound) {
			return
		}
		// The connection broke, or the command is about to start. A second kill does no
		// harm.
		select {
		case <-ended:
			if p.exit != nil || !broken {
				return
			}
			ended = nil // The stream ended, not the command.
		case <-ctx.Done():
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (p *Process) fail(err error) {
	p.failure = err
	p.unhook()
	p.finish(err)
}

func (p *Process) finish(cause error) {
	p.once.Do(func() { close(p.ended) })
	p.cancel(cause)
}
