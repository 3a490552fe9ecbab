package sandgate

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sandgate/sandgate/clients/go/fake"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

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

// New input after a failed write could be taken for a repeat of the lost input and be
// skipped. It is rejected instead.
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

// After input from another writer, the server would skip this writer's.
func TestStdinAfterAnotherWriterIsRejected(t *testing.T) {
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

// A process that joins a command can repeat the whole input: bytes that the command
// has are skipped, however they are split.
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
