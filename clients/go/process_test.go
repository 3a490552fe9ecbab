package sandgate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sandgate/sandgate/clients/go/fake"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

func TestExecute(t *testing.T) {
	client := connect(t, &fake.Server{Play: func(r *fake.Run) {
		r.Stdout("out\x00\xff")
		r.Stderr("err")
		r.Stdout(r.Stdin())
		r.Exit(3)
	}})
	result, err := create(t, client, "a").Execute(within(t), ExecuteRequest{Shell: "x", Stdin: []byte(" in")})
	if err != nil {
		t.Fatal(err)
	}
	if string(result.Stdout) != "out\x00\xff in" || string(result.Stderr) != "err" || result.Code() != 3 || result.ExecID == "" {
		t.Errorf("got %q, %q, %d", result.Stdout, result.Stderr, result.Code())
	}
}

func TestCommandThatCannotStart(t *testing.T) {
	sandbox := create(t, connect(t, &fake.Server{}), "a")
	if _, err := sandbox.Execute(within(t), ExecuteRequest{Argv: []string{"missing"}}); !errors.Is(err, ErrCommandStart) || !errors.Is(err, ErrCommandNotFound) {
		t.Errorf("error %v", err)
	}
	if _, err := sandbox.Execute(within(t), ExecuteRequest{}); !errors.Is(err, ErrInvalidRequest) {
		t.Errorf("error %v", err)
	}
}

// However often and wherever the connection breaks, the caller gets every byte
// once and in order, and the command runs once.
func TestResume(t *testing.T) {
	const size, cuts = 4 << 20, 8 // More than gRPC keeps in flight between two cuts.
	want := content(size)
	plays := make(chan struct{}, 10)
	server := &fake.Server{Play: func(r *fake.Run) {
		plays <- struct{}{}
		for piece := range slices.Chunk(want, 3000) {
			r.Stdout(string(piece))
		}
	}}
	process, err := create(t, connect(t, server), "a").Start(within(t), ExecuteRequest{Shell: "x"})
	if err != nil {
		t.Fatal(err)
	}
	defer process.Close()
	result, done := &Result{}, 0
	for event, err := range process.Events() {
		if err != nil {
			t.Fatal(err)
		}
		result.add(event)
		if len(result.Stdout) > done*size/cuts {
			done++
			server.Cut()
		}
	}
	if !bytes.Equal(result.Stdout, want) {
		t.Errorf("got %d bytes, want %d", len(result.Stdout), size)
	}
	if len(plays) != 1 {
		t.Errorf("the command ran %d times", len(plays))
	}
	if n := server.Calls("Attach"); n < cuts/2 {
		t.Errorf("attached %d times after %d cuts", n, done)
	}
}

// The lost answer to an Execute leads to the same command, not to a second one.
func TestExecuteIsJoined(t *testing.T) {
	plays := make(chan struct{}, 10)
	server := &fake.Server{}
	server.Play = func(*fake.Run) {
		plays <- struct{}{}
		if len(plays) == 1 {
			server.Cut()
		}
	}
	sandbox := create(t, connect(t, server), "a")
	if _, err := sandbox.Execute(within(t), ExecuteRequest{Shell: "x"}); err != nil {
		t.Fatal(err)
	}
	if len(plays) != 1 {
		t.Errorf("the command ran %d times", len(plays))
	}
}

func TestConnectionLost(t *testing.T) {
	server := &fake.Server{Play: func(r *fake.Run) {
		r.Stdout("half")
		<-r.Killed
	}}
	server.Fail = func(method string) error {
		if strings.HasSuffix(method, "/Attach") {
			return fake.Error(codes.Unavailable, "AGENT_UNAVAILABLE", "not now")
		}
		return nil
	}
	sandbox := create(t, connect(t, server, WithPatience(2*time.Second)), "a")
	process, err := sandbox.Start(within(t), ExecuteRequest{Shell: "x", Detach: true})
	if err != nil {
		t.Fatal(err)
	}
	defer process.Close()
	for event, err := range process.Events() {
		if err != nil {
			if !errors.Is(err, ErrConnectionLost) || !errors.Is(err, Reason("AGENT_UNAVAILABLE")) || !strings.Contains(err.Error(), "position 4") {
				t.Errorf("error %v", err)
			}
			return
		}
		if event.Output != nil {
			server.Cut()
		}
	}
	t.Error("the events ended without an error")
}

func TestReplacedWhileAway(t *testing.T) {
	var replaced atomic.Bool
	server := &fake.Server{
		Play: func(r *fake.Run) {
			r.Stdout("half")
			<-r.Killed
		},
		Fail: func(method string) error {
			if strings.HasSuffix(method, "/Attach") && !replaced.Load() {
				return fake.Error(codes.Unavailable, "AGENT_UNAVAILABLE", "still away")
			}
			return nil
		},
	}
	client := connect(t, server)
	create(t, client, "a")
	process, err := client.Sandbox("a").Start(within(t), ExecuteRequest{Shell: "x"})
	if err != nil {
		t.Fatal(err)
	}
	defer process.Close()
	server.Cut()
	server.Replace("a")
	replaced.Store(true)
	if _, err := process.Wait(); !errors.Is(err, ErrSandboxReplaced) {
		t.Errorf("error %v", err)
	}
}

// A connection that breaks just when the caller gives up must not save the
// command: without the kill it would live on for its grace.
func TestCancelKillsOverACut(t *testing.T) {
	var asked atomic.Int32
	killed := make(chan struct{})
	server := &fake.Server{
		Play: func(r *fake.Run) {
			<-r.Killed
			close(killed)
		},
		Fail: func(method string) error {
			if strings.HasSuffix(method, "/SignalProcess") && asked.Add(1) <= 2 {
				return fake.Error(codes.Unavailable, "AGENT_UNAVAILABLE", "the connection broke")
			}
			return nil
		},
	}
	sandbox := create(t, connect(t, server), "a")
	ctx, cancel := context.WithCancelCause(within(t))
	defer cancel(nil)
	process, err := sandbox.Start(ctx, ExecuteRequest{Shell: "x"})
	if err != nil {
		t.Fatal(err)
	}
	server.Cut()
	cancel(errors.New("enough"))
	if _, err := process.Wait(); !errors.Is(err, ErrCallCancelled) {
		t.Errorf("error %v", err)
	}
	process.Close()
	select {
	case <-killed:
	case <-time.After(30 * time.Second):
		t.Errorf("the command lives on after %d kills", asked.Load())
	}
}

// Whoever cancels kills the command, and keeps what it printed.
func TestCancelKills(t *testing.T) {
	server := &fake.Server{Play: func(r *fake.Run) {
		r.Stdout("half")
		<-r.Killed
	}}
	sandbox := create(t, connect(t, server), "a")
	reason := errors.New("enough")
	ctx, cancel := context.WithCancelCause(within(t))
	defer cancel(nil)
	process, err := sandbox.Start(ctx, ExecuteRequest{Shell: "x"})
	if err != nil {
		t.Fatal(err)
	}
	var out []byte
	for event, err := range process.Events() {
		if event.Output != nil {
			out = append(out, event.Output.GetData()...)
			cancel(reason)
			continue
		}
		if !errors.Is(err, ErrCallCancelled) || !errors.Is(err, context.Canceled) || !errors.Is(err, reason) {
			t.Errorf("error %v", err)
		}
	}
	process.Close()
	if string(out) != "half" || process.Exit().GetReason() != sandboxv1.ExitReason_EXIT_REASON_KILLED {
		t.Errorf("got %q, %v", out, process.Exit())
	}
	if diff := cmp.Diff([]string{"SIGKILL TREE"}, server.Run("a", process.ID()).Signals()); diff != "" {
		t.Error(diff)
	}
}

func TestDeadlineKills(t *testing.T) {
	server := &fake.Server{Play: func(r *fake.Run) { <-r.Killed }}
	sandbox := create(t, connect(t, server), "a")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // and the command has begun
	defer cancel()
	result, err := sandbox.Execute(ctx, ExecuteRequest{Shell: "x"})
	if !errors.Is(err, ErrDeadlineExceeded) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error %v", err)
	}
	if len(server.Run("a", result.ExecID).Signals()) != 1 {
		t.Error("the command was not killed")
	}
}

func TestCloseKillsWhatItOwns(t *testing.T) {
	server := &fake.Server{Play: func(r *fake.Run) { <-r.Killed }}
	sandbox := create(t, connect(t, server), "a")
	start := func(r ExecuteRequest) *Process {
		process, err := sandbox.Start(within(t), r)
		if err != nil {
			t.Fatal(err)
		}
		return process
	}
	owned := start(ExecuteRequest{Shell: "x"})
	detached := start(ExecuteRequest{Shell: "x", Detach: true})
	attached, err := sandbox.Attach(within(t), detached.ID(), 0, LeaderExit)
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range []*Process{owned, detached, attached} {
		process.Close()
		process.Close()
	}
	if n := len(server.Run("a", owned.ID()).Signals()); n != 1 {
		t.Errorf("the owned command got %d signals", n)
	}
	if n := len(server.Run("a", detached.ID()).Signals()); n != 0 {
		t.Errorf("the detached command got %d signals", n)
	}
	if _, err := owned.Wait(); !errors.Is(err, ErrCallCancelled) {
		t.Errorf("wait after close: %v", err)
	}
}

func TestAttachFromPosition(t *testing.T) {
	sandbox := create(t, connect(t, &fake.Server{Play: func(r *fake.Run) {
		r.Stdout("0123")
		r.Stderr("4567")
		r.Exit(9)
	}}), "a")
	process, err := sandbox.Start(within(t), ExecuteRequest{Shell: "x", ExecID: "one"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := process.Wait(); err != nil {
		t.Fatal(err)
	}
	again, err := sandbox.Attach(within(t), "one", 2, LeaderExit)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	result := &Result{}
	for event, err := range again.Events() {
		if err != nil {
			t.Fatal(err)
		}
		result.add(event)
	}
	if string(result.Stdout) != "23" || string(result.Stderr) != "4567" || result.Code() != 9 {
		t.Errorf("got %q, %q, %d", result.Stdout, result.Stderr, result.Code())
	}
	if _, err := sandbox.Attach(within(t), "none", 0, LeaderExit); !errors.Is(err, ErrExecNotFound) {
		t.Errorf("error %v", err)
	}
	if _, err := sandbox.Execute(within(t), ExecuteRequest{Shell: "other", ExecID: "one"}); !errors.Is(err, ErrExecState) {
		t.Errorf("error %v", err)
	}
}

func TestStdin(t *testing.T) {
	// The server takes less than is sent: the client goes on where it stopped.
	server := &fake.Server{MaxStdin: 100_003, Play: func(r *fake.Run) { r.Stdout(r.Stdin()) }}
	sandbox := create(t, connect(t, server), "a")
	process, err := sandbox.Start(within(t), ExecuteRequest{Shell: "x", Stdin: []byte("first "), StdinOpen: true})
	if err != nil {
		t.Fatal(err)
	}
	defer process.Close()
	long := bytes.Repeat([]byte("second "), 100_000)
	if err := process.WriteStdin(within(t), long); err != nil {
		t.Fatal(err)
	}
	server.Cut()
	if err := process.CloseStdin(within(t)); err != nil {
		t.Fatal(err)
	}
	result := &Result{}
	for event, err := range process.Events() {
		if err != nil {
			t.Fatal(err)
		}
		result.add(event)
	}
	if want := "first " + string(long); string(result.Stdout) != want {
		t.Errorf("got %d bytes, want %d", len(result.Stdout), len(want))
	}
}

// New input after a write that failed could be taken for a repeat of the lost one
// and vanish. It is refused instead.
func TestStdinAfterAFailedWrite(t *testing.T) {
	ctx, cancel := context.WithCancel(within(t))
	server := &fake.Server{Play: func(r *fake.Run) { r.Stdout(r.Stdin()) }}
	server.Late = func(method string) {
		if method == sandboxv1.SandboxService_WriteStdin_FullMethodName {
			cancel() // The input arrived, its answer did not.
			<-t.Context().Done()
		}
	}
	sandbox := create(t, connect(t, server), "a")
	process, err := sandbox.Start(within(t), ExecuteRequest{Shell: "x", StdinOpen: true})
	if err != nil {
		t.Fatal(err)
	}
	defer process.Close()
	if err := process.WriteStdin(ctx, []byte("first")); !errors.Is(err, ErrCallCancelled) {
		t.Fatalf("error %v", err)
	}
	for name, again := range map[string]func() error{
		"WriteStdin": func() error { return process.WriteStdin(within(t), []byte("new")) },
		"CloseStdin": func() error { return process.CloseStdin(within(t)) },
	} {
		err := again()
		if !errors.Is(err, ErrExecState) || status.Code(err) != codes.FailedPrecondition || errors.Is(err, context.Canceled) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if n := server.Calls("WriteStdin"); n != 1 {
		t.Errorf("%d calls of WriteStdin", n)
	}
}

// Input that somebody else has written would make the server skip this one's.
func TestStdinOfTwoWriters(t *testing.T) {
	server := &fake.Server{Play: func(r *fake.Run) { r.Stdout(r.Stdin()) }}
	sandbox := create(t, connect(t, server), "a")
	process, err := sandbox.Start(within(t), ExecuteRequest{Shell: "x", ExecID: "one", StdinOpen: true})
	if err != nil {
		t.Fatal(err)
	}
	defer process.Close()
	other, err := sandbox.Attach(within(t), "one", 0, LeaderExit)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.WriteStdin(within(t), []byte("a longer one")); err != nil {
		t.Fatal(err)
	}
	if err := process.WriteStdin(within(t), []byte("short")); !errors.Is(err, ErrExecState) {
		t.Errorf("error %v", err)
	}
}

// A process that joins a command may repeat its whole input: what the command has
// is skipped, whatever the pieces.
func TestStdinIsRepeatedAfterJoining(t *testing.T) {
	server := &fake.Server{Play: func(r *fake.Run) { r.Stdout(r.Stdin()) }}
	sandbox := create(t, connect(t, server), "a")
	input := content(3*chunkSize + 7)
	request := ExecuteRequest{Shell: "x", ExecID: "one", StdinOpen: true, Detach: true}
	result := &Result{}
	for _, size := range []int{2*chunkSize + 3, len(input)} {
		process, err := sandbox.Start(within(t), request)
		if err != nil {
			t.Fatal(err)
		}
		defer process.Close()
		if err := process.WriteStdin(within(t), input[:size]); err != nil {
			t.Fatal(err)
		}
		if size < len(input) {
			continue
		}
		if err := process.CloseStdin(within(t)); err != nil {
			t.Fatal(err)
		}
		for event, err := range process.Events() {
			if err != nil {
				t.Fatal(err)
			}
			result.add(event)
		}
	}
	if !bytes.Equal(result.Stdout, input) {
		t.Errorf("the command got %d bytes, want %d", len(result.Stdout), len(input))
	}
}

// take is where positions are checked: what is known is left out, a hole is an
// error, a gap is reported once.
func TestPositions(t *testing.T) {
	out := func(position int64, text string) reply {
		return &sandboxv1.ExecuteResponse{Event: &sandboxv1.ExecuteResponse_Output{Output: &Output{Position: position, Data: []byte(text)}}}
	}
	gap := func(from, to int64) reply {
		return &sandboxv1.AttachResponse{Event: &sandboxv1.AttachResponse_Gap{Gap: &Gap{Start: from, End: to}}}
	}
	tests := []struct {
		name   string
		events []reply
		want   string
		bad    bool
	}{
		{name: "in order", events: []reply{out(0, "ab"), out(2, "cd")}, want: "abcd"},
		{name: "repeated", events: []reply{out(0, "abc"), out(0, "abc"), out(1, "bcd")}, want: "abcd"},
		{name: "a hole", events: []reply{out(0, "ab"), out(3, "d")}, want: "ab", bad: true},
		{name: "a gap", events: []reply{out(0, "ab"), gap(2, 5), out(5, "f")}, want: "ab[2-5]f"},
		{name: "a gap that is known in part", events: []reply{out(0, "ab"), gap(0, 5), gap(1, 5), out(4, "ef")}, want: "ab[2-5]f"},
		{name: "an unknown event", events: []reply{&sandboxv1.ExecuteResponse{}, out(0, "a")}, want: "a"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, got, failure := &Process{}, "", error(nil)
			for _, event := range tt.events {
				e, err := p.take(event)
				if err != nil {
					failure = err
					break
				}
				if e.Output != nil {
					got += string(e.Output.GetData())
				}
				if e.Gap != nil {
					got += fmt.Sprintf("[%d-%d]", e.Gap.GetStart(), e.Gap.GetEnd())
				}
			}
			if got != tt.want || (failure != nil) != tt.bad {
				t.Errorf("got %q, %v", got, failure)
			}
		})
	}
}

func TestExitCode(t *testing.T) {
	tests := []struct {
		exited *Exited
		want   int
	}{
		{&Exited{Reason: sandboxv1.ExitReason_EXIT_REASON_EXITED, ExitCode: proto.Int32(0)}, 0},
		{&Exited{Reason: sandboxv1.ExitReason_EXIT_REASON_EXITED, ExitCode: proto.Int32(255)}, 255},
		{&Exited{Reason: sandboxv1.ExitReason_EXIT_REASON_TIMED_OUT, Signal: "SIGKILL"}, 124},
		{&Exited{Reason: sandboxv1.ExitReason_EXIT_REASON_SIGNALED, Signal: "SIGSEGV"}, 139},
		{&Exited{Reason: sandboxv1.ExitReason_EXIT_REASON_KILLED, Signal: "SIGTERM"}, 143},
		{&Exited{Reason: sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY}, 137},
		{&Exited{Reason: sandboxv1.ExitReason_EXIT_REASON_SANDBOX_STOPPED}, 125},
		{&Exited{Reason: sandboxv1.ExitReason_EXIT_REASON_LOST}, 125},
		{nil, 125},
	}
	for _, tt := range tests {
		if got := ExitCode(tt.exited); got != tt.want {
			t.Errorf("%v: %d, want %d", tt.exited, got, tt.want)
		}
	}
}
