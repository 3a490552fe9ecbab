package sandgate

import (
	"errors"
	"fmt"
	"testing"

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

// take checks positions: it drops repeated output, returns an error for a hole, and
// reports a gap once.
func TestRepeatedOutputIsDroppedAndGapsAreReportedOnce(t *testing.T) {
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
