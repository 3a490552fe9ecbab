package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandgate/sandgate/agent/fault"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

// target finds the command that a call names.
func (a *Agent) target(incarnation, id string) (*command, error) {
	a.touch()
	if err := a.checkIncarnation(incarnation); err != nil {
		return nil, err
	}
	if err := checkExecID(id, false); err != nil {
		return nil, err
	}
	return a.find(id)
}

// WriteStdin appends to a command's standard input.
func (a *Agent) WriteStdin(ctx context.Context, env *agentv1.WriteStdinRequest) (*agentv1.WriteStdinResponse, error) {
	r := env.GetRequest()
	c, err := a.target(r.GetExpectedIncarnation(), r.GetExecId())
	if err != nil {
		return nil, err
	}
	if len(r.GetData()) > streaming.MaxChunk {
		return nil, invalid("data", "must not be larger than 1 MiB")
	}
	next, err := c.stdin.write(ctx, r.GetOffset(), r.GetData(), r.GetEof())
	switch {
	case err == nil:
		return &agentv1.WriteStdinResponse{Response: &sandboxv1.WriteStdinResponse{NextOffset: next}}, nil
	case ctx.Err() != nil:
		return nil, callEnded(ctx)
	case errors.Is(err, errStdinHole):
		return nil, fault.New(codes.OutOfRange, sandboxv1.ErrorReason_ERROR_REASON_STDIN_OFFSET_MISMATCH,
			fmt.Sprintf("offset %d does not follow the %d bytes that were taken", r.GetOffset(), next),
			map[string]string{"offset": strconv.FormatInt(next, 10)})
	case errors.Is(err, errStdinClosed):
		return nil, fault.New(codes.FailedPrecondition, sandboxv1.ErrorReason_ERROR_REASON_STDIN_CLOSED,
			"standard input was not opened or has ended", map[string]string{"exec_id": c.id})
	default:
		return nil, internal(err)
	}
}

// SignalProcess sends a signal to the leader, its group or its whole tree.
func (a *Agent) SignalProcess(_ context.Context, env *agentv1.SignalProcessRequest) (*agentv1.SignalProcessResponse, error) {
	r := env.GetRequest()
	c, err := a.target(r.GetExpectedIncarnation(), r.GetExecId())
	if err != nil {
		return nil, err
	}
	name := strings.ToUpper(r.GetSignal())
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	sig := unix.SignalNum(name)
	if sig == 0 {
		return nil, invalid("signal", "%q is no signal", r.GetSignal())
	}
	return &agentv1.SignalProcessResponse{Response: &sandboxv1.SignalProcessResponse{Delivered: c.signal(sig, r.GetScope())}}, nil
}

// ResizeTerminal sets the size of a command's terminal.
func (a *Agent) ResizeTerminal(_ context.Context, env *agentv1.ResizeTerminalRequest) (*agentv1.ResizeTerminalResponse, error) {
	r := env.GetRequest()
	c, err := a.target(r.GetExpectedIncarnation(), r.GetExecId())
	if err != nil {
		return nil, err
	}
	if err := checkSize(r.GetSize()); err != nil {
		return nil, err
	}
	if !c.terminal {
		return nil, fault.New(codes.FailedPrecondition, sandboxv1.ErrorReason_ERROR_REASON_NO_TERMINAL,
			"the command has no terminal", map[string]string{"exec_id": c.id})
	}
	raw, err := c.stdin.file.SyscallConn()
	if err == nil {
		var failed error
		err = raw.Control(func(fd uintptr) {
			failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(r.GetSize().GetRows()), Col: uint16(r.GetSize().GetColumns())})
		})
		err = errors.Join(err, failed)
	}
	if err != nil {
		return nil, fault.New(codes.FailedPrecondition, sandboxv1.ErrorReason_ERROR_REASON_EXEC_ENDED, "the process has ended", nil).Because(err)
	}
	return &agentv1.ResizeTerminalResponse{Response: &sandboxv1.ResizeTerminalResponse{}}, nil
}

// ListProcesses lists commands: those of which anything is alive, and on
// demand those that ended.
func (a *Agent) ListProcesses(_ context.Context, env *agentv1.ListProcessesRequest) (*agentv1.ListProcessesResponse, error) {
	r := env.GetRequest()
	if err := a.checkIncarnation(r.GetExpectedIncarnation()); err != nil {
		return nil, err
	}
	all, list := a.known(r.GetIncludeEnded())
	for _, c := range all {
		select {
		case <-c.ready:
		default:
			continue
		}
		if c.failed != nil {
			continue
		}
		if p := c.describe(); p.GetExited() == nil || p.GetLiveProcesses() > 0 || r.GetIncludeEnded() {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(x, y *sandboxv1.Process) int {
		return x.GetStartTime().AsTime().Compare(y.GetStartTime().AsTime())
	})
	list = newest(list, maxListedEnded)
	return &agentv1.ListProcessesResponse{Response: &sandboxv1.ListProcessesResponse{Processes: list, Incarnation: a.cfg.Incarnation}}, nil
}

// maxListedEnded is how many ended commands one reply holds. A server refuses
// replies of more than 4 MiB or 131 072 fields; a command has some 600 bytes and 27
// fields at most.
const maxListedEnded = 4096

// newest drops the oldest of the ended commands, of which nothing is alive, until
// at most so many are left. The list begins with the oldest.
func newest(list []*sandboxv1.Process, most int) []*sandboxv1.Process {
	over := func(p *sandboxv1.Process) bool { return p.GetExited() != nil && p.GetLiveProcesses() == 0 }
	ended := 0
	for _, p := range list {
		if over(p) {
			ended++
		}
	}
	return slices.DeleteFunc(list, func(p *sandboxv1.Process) bool {
		if ended <= most || !over(p) {
			return false
		}
		ended--
		return true
	})
}

// known returns the commands that have not been retired and describes those
// that have: all of them, or those of which anything is alive.
func (a *Agent) known(ended bool) (running []*command, list []*sandboxv1.Process) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.commands {
		running = append(running, c)
	}
	if ended {
		for p := a.ended.first; p != nil; p = p.next {
			list = append(list, p.describe(a.ended.archive))
		}
		return running, list
	}
	for _, p := range a.ended.alive() {
		if d := p.describe(a.ended.archive); d.GetLiveProcesses() > 0 {
			list = append(list, d)
		}
	}
	return running, list
}

func (c *command) describe() *sandboxv1.Process {
	p := &sandboxv1.Process{
		ExecId: c.id, Command: strings.ToValidUTF8(c.text, "\uFFFD"), StartTime: timestamppb.New(c.start),
		Detached: c.detached, Terminal: c.terminal,
	}
	p.FirstPosition, p.Position = c.log.Range()
	c.mu.Lock()
	p.Exited, p.Attached = c.exited, int32(c.followers)
	c.mu.Unlock()
	if p.GetExited() == nil {
		p.Pid = int32(c.proc.Pid)
	}
	p.LiveProcesses = int32(len(c.tree.pids()))
	return p
}
