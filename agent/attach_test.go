package agent

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/sandgate/sandgate/agent/protocol"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// client is another connection to the same agent.
func (h *harness) client(t testing.TB) *harness {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+h.socket, protocol.Unconfined(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &harness{AgentServiceClient: agentv1.NewAgentServiceClient(conn), socket: h.socket}
}

// clientOnPipe is a client and its connection to the agent. To close the client would
// cancel its calls first; to close the connection breaks them.
func (h *harness) clientOnPipe(t testing.TB) (agentv1.AgentServiceClient, net.Conn) {
	t.Helper()
	pipe, err := net.Dial("unix", h.socket)
	if err != nil {
		t.Fatal(err)
	}
	var used atomic.Bool
	conn, err := grpc.NewClient("passthrough:///agent", protocol.Unconfined(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if used.Swap(true) {
				return nil, net.ErrClosed
			}
			return pipe, nil
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = conn.Close(), pipe.Close() })
	return agentv1.NewAgentServiceClient(conn), pipe
}

// Wherever a caller attaches, it sees what the first one saw from there on.
func TestAttachFromAnyPositionSeesTheSameOutput(t *testing.T) {
	h := start(t, setup{})
	r := shell("i=0; while [ $i -lt 3000 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done; head -c 3000000 /dev/urandom")
	r.ExecId = "it"
	first := h.run(t, r)
	if first.err != nil || first.gaps != 0 {
		t.Fatal(first.err)
	}
	whole := h.attach(t, "it", 0, 0)
	if !bytes.Equal(whole.all, first.all) || !slices.Equal(whole.runs, first.runs) || !whole.started.GetJoined() {
		t.Fatalf("replay differs: %d bytes, %d runs", len(whole.all), len(whole.runs))
	}
	rapid.Check(t, func(rt *rapid.T) {
		at := rapid.IntRange(0, len(first.all)).Draw(rt, "position")
		got := h.attach(t, "it", int64(at), 0)
		if got.err != nil || !bytes.Equal(got.all, first.all[at:]) || got.gaps != 0 || got.started.GetPosition() != int64(at) {
			rt.Fatalf("from %d: %d bytes, %v", at, len(got.all), got.err)
		}
		if got.exited.GetPosition() != int64(len(first.all)) || got.exited.GetExitCode() != 0 {
			rt.Fatalf("ended %v", got.exited)
		}
	})
	beyond := h.attach(t, "it", int64(len(first.all))+1, 0)
	if status.Code(beyond.err) != codes.OutOfRange || reasonOf(t, beyond.err) != "POSITION_INVALID" {
		t.Fatalf("beyond the end: %v", beyond.err)
	}
	unknown := h.attach(t, "other", 0, 0)
	if status.Code(unknown.err) != codes.NotFound || reasonOf(t, unknown.err) != "EXEC_NOT_FOUND" {
		t.Fatalf("unknown: %v", unknown.err)
	}
}

// One exec_id is one command, however many start it at once.
func TestOneExecIDIsOneCommand(t *testing.T) {
	eachSetup(t, func(t *testing.T, h *harness) {
		r := shell("echo $$; sleep 0.1; echo $$")
		r.ExecId = "one"
		var wg sync.WaitGroup
		var mu sync.Mutex
		fresh, outputs := 0, map[string]bool{}
		for range 20 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				got := h.run(t, r)
				mu.Lock()
				defer mu.Unlock()
				outputs[string(got.all)] = true
				if !got.started.GetJoined() {
					fresh++
				}
			}()
		}
		wg.Wait()
		if fresh != 1 || len(outputs) != 1 {
			t.Fatalf("%d started it, outputs %v", fresh, outputs)
		}
		if got := h.run(t, r); !got.started.GetJoined() || !outputs[string(got.all)] {
			t.Fatalf("after its end: %v", got.started)
		}
		r = shell("echo other")
		r.ExecId = "one"
		if got := h.run(t, r); status.Code(got.err) != codes.AlreadyExists || reasonOf(t, got.err) != "EXEC_ID_REUSED" {
			t.Fatalf("another request: %v", got.err)
		}
	})
}

// Under BLOCK a command waits for its reader and loses nothing; under EVICT it
// does not wait, and what was lost is said.
func TestFullLogBlocksOrEvicts(t *testing.T) {
	h := start(t, setup{})
	limited := &agentv1.CallContext{Limits: &agentv1.Limits{OutputLogBytes: 256 << 10}}
	const size = 20_000_000
	for _, on := range []sandboxv1.OnFull{sandboxv1.OnFull_ON_FULL_BLOCK, sandboxv1.OnFull_ON_FULL_EVICT} {
		t.Run(on.String(), func(t *testing.T) {
			r := shell(fmt.Sprintf("head -c %d /dev/zero; echo done >&2", size))
			r.ExecId, r.OnFull = on.String(), on
			s, err := h.client(t).Execute(called(t, limited), r)
			if err != nil {
				t.Fatal(err)
			}
			ended := func() bool {
				l, err := h.ListProcesses(testContext(t), &sandboxv1.ListProcessesRequest{IncludeEnded: true})
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range l.GetProcesses() {
					if p.GetExecId() == r.GetExecId() {
						return p.GetExited() != nil
					}
				}
				return false
			}
			if on == sandboxv1.OnFull_ON_FULL_EVICT {
				eventually(t, "the command does not wait", ended)
			} else {
				time.Sleep(200 * time.Millisecond) // there is no event to wait for: it must not end
				if ended() {
					t.Fatal("the command did not wait")
				}
			}
			got := collect(t, s.Recv, 0)
			if got.err != nil || int64(len(got.stdout))+int64(len(got.stderr))+got.gaps != size+5 {
				t.Fatalf("%d bytes, gaps %d, %v", len(got.all), got.gaps, got.err)
			}
			if (got.gaps != 0) != (on == sandboxv1.OnFull_ON_FULL_EVICT) {
				t.Fatalf("gaps of %d", got.gaps)
			}
		})
	}
}

// A reader that takes nothing is dropped; the command goes on for the others
// and the position to come back to is named.
func TestReaderThatTakesNothingIsDropped(t *testing.T) {
	h := start(t, setup{stall: 2 * time.Second})
	limited := &agentv1.CallContext{Limits: &agentv1.Limits{OutputLogBytes: 256 << 10}}
	r := shell("head -c 20000000 /dev/zero; echo done")
	r.ExecId = "stuck"
	stuck, err := h.client(t).Execute(called(t, limited), r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stuck.Recv(); err != nil {
		t.Fatal(err)
	}
	other := h.attach(t, "stuck", 0, 0)
	if other.exited == nil || int64(len(other.all))+other.gaps != 20_000_005 {
		t.Fatalf("the other has %d bytes, gaps %d, %v", len(other.all), other.gaps, other.err)
	}
	// Nothing was taken since: what is in flight comes, then the error.
	time.Sleep(4 * time.Second) // there is no event to wait for: to see it, one has to read
	at := int64(0)
	for {
		e, err := stuck.Recv()
		if err != nil {
			if reasonOf(t, err) != "READER_TOO_SLOW" {
				t.Fatalf("got %v", err)
			}
			break
		}
		at += int64(len(e.GetOutput().GetData()))
	}
	if at >= 20_000_000 {
		t.Fatal("the reader was not stuck")
	}
}

// The only reader of a command that waits for its readers is its pipe: when it
// pauses, the command pauses with it, and goes on when it does.
func TestCommandPausesWithItsOnlyReader(t *testing.T) {
	h := start(t, setup{stall: 100 * time.Millisecond})
	limited := &agentv1.CallContext{Limits: &agentv1.Limits{OutputLogBytes: 256 << 10}}
	const size = 20_000_000
	s, err := h.client(t).Execute(called(t, limited), shell(fmt.Sprintf("head -c %d /dev/zero", size)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second) // the pause itself: many times of what drops other readers
	total := int64(0)
	for {
		e, err := s.Recv()
		if err != nil {
			t.Fatalf("after %d bytes: %v", total, err)
		}
		total += int64(len(e.GetOutput().GetData()))
		if x := e.GetExited(); x != nil {
			if total != size || x.GetReason() != sandboxv1.ExitReason_EXIT_REASON_EXITED {
				t.Fatalf("%d bytes, %v", total, x)
			}
			return
		}
	}
}

func TestWriteStdin(t *testing.T) {
	eachSetup(t, func(t *testing.T, h *harness) {
		r := shell("cat; echo end")
		r.ExecId, r.StdinOpen, r.Stdin = "in", true, []byte("one ")
		ctx, cancel := context.WithCancel(testContext(t))
		defer cancel()
		s, err := h.Execute(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		write := func(offset int64, data string, eof bool) (int64, error) {
			w, err := h.WriteStdin(ctx, &sandboxv1.WriteStdinRequest{
				ExecId: "in", Offset: offset, Data: []byte(data), Eof: eof})
			return w.GetNextOffset(), err
		}
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
		if n, err := write(4, "two ", false); err != nil || n != 8 {
			t.Fatal(n, err)
		}
		if n, err := write(4, "two three ", false); err != nil || n != 14 {
			t.Fatal(n, err)
		}
		if _, err := write(99, "x", false); status.Code(err) != codes.OutOfRange || reasonOf(t, err) != "STDIN_OFFSET_MISMATCH" {
			t.Fatal(err)
		}
		for range 2 {
			if n, err := write(14, "four\n", true); err != nil || n != 19 {
				t.Fatal(n, err)
			}
		}
		if _, err := write(19, "x", false); reasonOf(t, err) != "STDIN_CLOSED" {
			t.Fatal(err)
		}
		var out strings.Builder
		for {
			e, err := s.Recv()
			if err != nil {
				break
			}
			out.Write(e.GetOutput().GetData())
		}
		if out.String() != "one two three four\nend\n" {
			t.Fatalf("%q", out.String())
		}
	})
}
