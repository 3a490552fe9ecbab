package sandgate

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/sandgate/sandgate/clients/go/fake"
)

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

// A lost reply to Execute leads to the same command, not to a second one.
func TestLostReplyToExecuteJoinsTheCommand(t *testing.T) {
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
	sandbox := create(t, connect(t, server, WithReconnectTimeout(2*time.Second)), "a")
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
			if e := (*Error)(nil); !errors.As(err, &e) || e.Metadata["position"] != "4" || e.Metadata["exec_id"] != process.ID() {
				t.Errorf("error %+v", err)
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
