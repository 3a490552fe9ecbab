package fake

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Run is one command that a test plays.
type Run struct {
	// Request is the caller's request.
	Request *sandboxv1.ExecuteRequest
	// Killed is closed when the command is killed.
	Killed <-chan struct{}

	id      string
	kill    func()
	start   *timestamppb.Timestamp
	mu      sync.Mutex
	changed chan struct{}
	log     []*sandboxv1.Output
	end     int64
	exited  *sandboxv1.Exited
	stdin   []byte
	eof     bool
	sizes   []*sandboxv1.TerminalSize
	signals []string
}

// Stdout writes output.
func (r *Run) Stdout(text string) { r.write(sandboxv1.Stream_STREAM_STDOUT, text) }

// Stderr writes to the other stream.
func (r *Run) Stderr(text string) { r.write(sandboxv1.Stream_STREAM_STDERR, text) }

func (r *Run) write(stream sandboxv1.Stream, text string) {
	r.change(func() {
		r.log = append(r.log, &sandboxv1.Output{Stream: stream, Position: r.end, Data: []byte(text)})
		r.end += int64(len(text))
	})
}

// Exit ends the command with a code.
func (r *Run) Exit(code int32) {
	r.End(&sandboxv1.Exited{Reason: sandboxv1.ExitReason_EXIT_REASON_EXITED, ExitCode: proto.Int32(code)})
}

// End ends the command; only the first end counts.
func (r *Run) End(exited *sandboxv1.Exited) {
	r.change(func() {
		if r.exited == nil {
			exited.Position = r.end
			r.exited = exited
		}
	})
}

// Kill ends the command with a reason.
func (r *Run) Kill(reason sandboxv1.ExitReason) {
	r.End(&sandboxv1.Exited{Reason: reason, Signal: "SIGKILL"})
	r.kill()
}

// Stdin waits for the end of standard input and returns it.
func (r *Run) Stdin() string {
	for {
		r.mu.Lock()
		text, eof, changed := string(r.stdin), r.eof || !r.Request.GetStdinOpen(), r.changed
		r.mu.Unlock()
		if eof {
			return text
		}
		select {
		case <-changed:
		case <-r.Killed:
			return text
		}
	}
}

// Signals returns the signals that were sent, with their scopes.
func (r *Run) Signals() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.signals)
}

func (r *Run) change(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	close(r.changed)
	r.changed = make(chan struct{})
}

// Run returns a command by its id, nil if there is none.
func (s *Server) Run(sandbox, id string) *Run {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b, ok := s.sandboxes[sandbox]; ok {
		return b.runs[id]
	}
	return nil
}

// Execute starts or joins a command.
func (s *Server) Execute(q *sandboxv1.ExecuteRequest, stream sandboxv1.SandboxService_ExecuteServer) error {
	if q.GetCommand() == nil {
		return Error(codes.InvalidArgument, "REQUEST_INVALID", "there is no command")
	}
	if q.GetArgv() != nil && q.GetArgv().GetArgs()[0] == "missing" {
		return Error(codes.NotFound, "COMMAND_NOT_FOUND", "there is no program \"missing\"")
	}
	s.mu.Lock()
	b, err := s.sandbox(q.GetSandboxId(), q.GetExpectedIncarnation())
	if err == nil {
		err = b.active()
	}
	if err != nil {
		s.mu.Unlock()
		return err
	}
	run, joined := b.runs[q.GetExecId()]
	if joined && !proto.Equal(run.Request, q) {
		s.mu.Unlock()
		return Error(codes.AlreadyExists, "EXEC_ID_REUSED", "the id was used for another request")
	}
	if !joined {
		killed := make(chan struct{})
		run = &Run{Request: q, id: q.GetExecId(), Killed: killed, kill: sync.OnceFunc(func() { close(killed) }),
			changed: make(chan struct{}), stdin: q.GetStdin(), start: timestamppb.Now()}
		b.runs[run.id], b.order = run, append(b.order, run)
		s.plays.Go(func() {
			if s.Play != nil {
				s.Play(run)
			}
			run.Exit(0)
		})
	}
	incarnation := b.info.GetIncarnation()
	s.mu.Unlock()
	return follow(stream.Context(), run, 0, incarnation, joined, func(e *sandboxv1.ExecuteResponse) error { return stream.Send(e) })
}

// Attach follows a command.
func (s *Server) Attach(q *sandboxv1.AttachRequest, stream sandboxv1.SandboxService_AttachServer) error {
	s.mu.Lock()
	b, err := s.sandbox(q.GetSandboxId(), q.GetExpectedIncarnation())
	if err != nil {
		s.mu.Unlock()
		return err
	}
	run, ok := b.runs[q.GetExecId()]
	incarnation := b.info.GetIncarnation()
	s.mu.Unlock()
	if !ok {
		return Error(codes.NotFound, "EXEC_NOT_FOUND", "there is no such command")
	}
	return follow(stream.Context(), run, q.GetPosition(), incarnation, true, func(e *sandboxv1.ExecuteResponse) error {
		raw, _ := proto.Marshal(e)
		same := &sandboxv1.AttachResponse{}
		if err := proto.Unmarshal(raw, same); err != nil {
			return err
		}
		return stream.Send(same)
	})
}

// follow replays a command's log and then follows the command.
func follow(ctx context.Context, r *Run, position int64, incarnation string, joined bool, send func(*sandboxv1.ExecuteResponse) error) error {
	err := send(&sandboxv1.ExecuteResponse{Event: &sandboxv1.ExecuteResponse_Started{Started: &sandboxv1.Started{
		ExecId: r.id, Incarnation: incarnation, Pid: 7, StartTime: r.start, Position: position, Joined: joined,
	}}})
	for next := 0; err == nil; {
		r.mu.Lock()
		log, exited, changed := r.log[next:], r.exited, r.changed
		r.mu.Unlock()
		for _, out := range log {
			next++
			skip := min(max(position-out.GetPosition(), 0), int64(len(out.GetData())))
			if skip == int64(len(out.GetData())) {
				continue
			}
			piece := &sandboxv1.Output{Stream: out.GetStream(), Position: out.GetPosition() + skip, Data: out.GetData()[skip:]}
			if err := send(&sandboxv1.ExecuteResponse{Event: &sandboxv1.ExecuteResponse_Output{Output: piece}}); err != nil {
				return err
			}
		}
		if len(log) > 0 {
			continue
		}
		if exited != nil {
			return send(&sandboxv1.ExecuteResponse{Event: &sandboxv1.ExecuteResponse_Exited{Exited: exited}})
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

// WriteStdin appends new input.
func (s *Server) WriteStdin(_ context.Context, q *sandboxv1.WriteStdinRequest) (*sandboxv1.WriteStdinResponse, error) {
	run := s.Run(q.GetSandboxId(), q.GetExecId())
	if run == nil {
		return nil, Error(codes.NotFound, "EXEC_NOT_FOUND", "there is no such command")
	}
	reply, missed := &sandboxv1.WriteStdinResponse{}, false
	run.change(func() {
		have := int64(len(run.stdin))
		if missed = q.GetOffset() > have; missed {
			return
		}
		if known := have - q.GetOffset(); known < int64(len(q.GetData())) {
			data := q.GetData()[known:]
			if s.MaxStdin > 0 {
				data = data[:min(len(data), s.MaxStdin)]
			}
			run.stdin = append(slices.Clone(run.stdin), data...)
		}
		run.eof = run.eof || q.GetEof()
		reply.NextOffset = int64(len(run.stdin))
	})
	if missed {
		return nil, Error(codes.OutOfRange, "STDIN_OFFSET_MISMATCH", "there is a hole")
	}
	return reply, nil
}

// SignalProcess records a signal; SIGKILL ends the command.
func (s *Server) SignalProcess(_ context.Context, q *sandboxv1.SignalProcessRequest) (*sandboxv1.SignalProcessResponse, error) {
	run := s.Run(q.GetSandboxId(), q.GetExecId())
	if run == nil {
		return nil, Error(codes.NotFound, "EXEC_NOT_FOUND", "there is no such command")
	}
	run.mu.Lock()
	run.signals = append(run.signals, q.GetSignal()+" "+strings.TrimPrefix(q.GetScope().String(), "SIGNAL_SCOPE_"))
	ended := run.exited != nil
	run.mu.Unlock()
	if !ended && strings.HasSuffix(q.GetSignal(), "KILL") {
		run.Kill(sandboxv1.ExitReason_EXIT_REASON_KILLED)
	}
	return &sandboxv1.SignalProcessResponse{Delivered: !ended}, nil
}

// ResizeTerminal records a size.
func (s *Server) ResizeTerminal(_ context.Context, q *sandboxv1.ResizeTerminalRequest) (*sandboxv1.ResizeTerminalResponse, error) {
	run := s.Run(q.GetSandboxId(), q.GetExecId())
	if run == nil {
		return nil, Error(codes.NotFound, "EXEC_NOT_FOUND", "there is no such command")
	}
	run.change(func() { run.sizes = append(run.sizes, q.GetSize()) })
	return &sandboxv1.ResizeTerminalResponse{}, nil
}

// Sizes returns the sizes that the terminal was set to, as "rows×columns".
func (r *Run) Sizes() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var sizes []string
	for _, size := range r.sizes {
		sizes = append(sizes, strconv.Itoa(int(size.GetRows()))+"×"+strconv.Itoa(int(size.GetColumns())))
	}
	return sizes
}

// ListProcesses lists the commands, the oldest first.
func (s *Server) ListProcesses(_ context.Context, q *sandboxv1.ListProcessesRequest) (*sandboxv1.ListProcessesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.sandbox(q.GetSandboxId(), q.GetExpectedIncarnation())
	if err != nil {
		return nil, err
	}
	reply := &sandboxv1.ListProcessesResponse{Incarnation: b.info.GetIncarnation()}
	for _, run := range b.order {
		run.mu.Lock()
		if run.exited == nil || q.GetIncludeEnded() {
			reply.Processes = append(reply.Processes, &sandboxv1.Process{
				ExecId: run.id, Pid: 7, Command: run.Request.GetShell() + strings.Join(run.Request.GetArgv().GetArgs(), " "),
				StartTime: run.start, Exited: run.exited, Detached: run.Request.GetDetach(), Position: run.end,
			})
		}
		run.mu.Unlock()
	}
	return reply, nil
}
