package sandgate

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// WriteStdin appends to the command's standard input, which must be open, and returns
// when the agent has taken it. After a write that failed, unless the input has ended,
// it is unknown how much arrived: later writes and CloseStdin fail with
// [ErrExecState].
//
// A process from [Sandbox.Attach], or one that joined a running command, begins at
// the first byte of the input: bytes that the command has already taken are skipped.
func (p *Process) WriteStdin(ctx context.Context, data []byte) error {
	p.stdin.Lock()
	defer p.stdin.Unlock()
	if err := p.stdinKnown(); err != nil {
		return err
	}
	err := p.writeAll(ctx, data)
	// An input that has ended takes no byte, so nothing about it is unknown.
	if !errors.Is(err, Reason("STDIN_CLOSED")) && !errors.Is(err, Reason("EXEC_ENDED")) {
		p.stdinFailed = err
	}
	return err
}

// CloseStdin ends the command's standard input.
func (p *Process) CloseStdin(ctx context.Context) error {
	p.stdin.Lock()
	defer p.stdin.Unlock()
	if err := p.stdinKnown(); err != nil {
		return err
	}
	return p.writeStdin(ctx, nil, true)
}

// stdinKnown returns an error after a failed write: the server skips bytes at offsets
// that it has, so new input could get lost.
func (p *Process) stdinKnown() error {
	if p.stdinFailed == nil {
		return nil
	}
	// Without the failure as cause: this call was neither cancelled nor cut.
	return local(ErrExecState, codes.FailedPrecondition, nil,
		"an earlier write to the standard input of %s failed, and how much of it arrived is unknown: %v", p.id, p.stdinFailed)
}

func (p *Process) writeAll(ctx context.Context, data []byte) error {
	for len(data) > 0 {
		n := int64(min(len(data), chunkSize))
		before := p.stdinOffset
		if err := p.writeStdin(ctx, data[:n], false); err != nil {
			return err
		}
		taken := p.stdinOffset - before
		if taken <= 0 {
			return local(ErrInternal, codes.DataLoss, nil, "the server took none of the input at offset %d", before)
		}
		if taken > n && !p.started.GetJoined() {
			return local(ErrExecState, codes.FailedPrecondition, nil,
				"another caller wrote to the standard input of %s: its offset went from %d to %d", p.id, before, p.stdinOffset)
		}
		// The server may have taken less than was sent. After a join it may have more
		// already: this write repeats the input of an earlier process, so the next
		// piece follows this one and not the server's offset.
		taken = min(taken, n)
		p.stdinOffset, data = before+taken, data[taken:]
	}
	return nil
}

func (p *Process) writeStdin(ctx context.Context, data []byte, eof bool) error {
	reply, err := p.sandbox.client.stub.WriteStdin(ctx, &sandboxv1.WriteStdinRequest{
		SandboxId: p.sandbox.id, ExpectedIncarnation: p.sandbox.Incarnation, ExecId: p.id,
		Offset: p.stdinOffset, Data: data, Eof: eof,
	})
	if err == nil {
		p.stdinOffset = reply.GetNextOffset()
	}
	return err
}
