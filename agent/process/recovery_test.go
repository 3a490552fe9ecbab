package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/sandgate/sandgate/agent/protocol"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/test/daemon"
)

// outputCodec is protobuf, except for output.
type outputCodec struct{ encoding.CodecV2 }

func (c outputCodec) Marshal(v any) (mem.BufferSlice, error) {
	if o, ok := v.(*output); ok {
		return o.MarshalBuffers(), nil
	}
	return c.CodecV2.Marshal(v)
}

// testServer lets the methods of Service win, because they are one level higher.
type testServer struct {
	*Service
	unimplemented
}

type unimplemented struct {
	agentv1.UnimplementedAgentServiceServer
}

// newTestService serves a service of this process.
func newTestService(t *testing.T) (*Service, agentv1.AgentServiceClient, *daemon.Log) {
	t.Helper()
	log := new(daemon.Log)
	s := New(Config{
		Workdir: "/", StateDir: t.TempDir(), Env: os.Environ(), StallTimeout: time.Minute, BrokenGrace: time.Minute,
		Log: slog.New(slog.NewTextHandler(log, nil)), Disconnected: func(context.Context) bool { return false },
	})
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(outputCodec{encoding.GetCodecV2(proto.Name)}),
		grpc.UnaryInterceptor(s.recovery.Unary), grpc.StreamInterceptor(s.recovery.Stream))
	agentv1.RegisterAgentServiceServer(server, testServer{Service: s})
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	conn, err := grpc.NewClient("unix://"+l.Addr().String(), protocol.Unconfined(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		s.Stop()
		server.GracefulStop()
		s.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s, agentv1.NewAgentServiceClient(conn), log
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func shell(script string) *sandboxv1.ExecuteRequest {
	return &sandboxv1.ExecuteRequest{Command: &sandboxv1.ExecuteRequest_Shell{Shell: script}}
}

// collect reads a stream to its end.
func collect(stream grpc.ServerStreamingClient[sandboxv1.ExecuteResponse]) (out string, exited *sandboxv1.Exited, err error) {
	for {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, exited, nil
		}
		if err != nil {
			return out, exited, err
		}
		out += string(e.GetOutput().GetData())
		if x := e.GetExited(); x != nil {
			exited = x
		}
	}
}

func run(t *testing.T, c agentv1.AgentServiceClient, r *sandboxv1.ExecuteRequest) (out string, exited *sandboxv1.Exited, err error) {
	t.Helper()
	stream, err := c.Execute(testContext(t), r)
	if err != nil {
		t.Fatal(err)
	}
	return collect(stream)
}

// running reports whether a process has the mark in its command line.
func running(mark string) bool {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), mark) && f != "/proc/"+strconv.Itoa(os.Getpid())+"/cmdline" {
			return true
		}
	}
	return false
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}

// A panic during the start is an INTERNAL error for all callers of the command.
func TestPanicDuringStartIsInternalForAllCallers(t *testing.T) {
	s, c, log := newTestService(t)
	oom := s.oom
	s.oom = nil
	request := shell("echo well")
	request.ExecId = "one"
	var joined sync.WaitGroup
	for range 3 { // a call that joins must not hang
		joined.Go(func() {
			if _, _, err := run(t, c, request); status.Code(err) != codes.Internal {
				t.Errorf("got %v", err)
			}
		})
	}
	joined.Wait()
	s.oom = oom
	if !strings.Contains(log.String(), "recovered from a panic") {
		t.Error("the panic was not logged")
	}
	if out, _, err := run(t, c, request); err != nil || out != "well\n" {
		t.Errorf("after the panics: %q, %v", out, err)
	}
}

// A panic of a command's pump ends that command, with all its processes, and not
// the agent.
func TestPanicOfAPumpEndsOnlyItsCommand(t *testing.T) {
	s, c, log := newTestService(t)
	mark := fmt.Sprintf("3600.%d%d", os.Getpid(), time.Now().UnixNano()%1e6)
	request := shell("sleep " + mark + " & echo begun; read x")
	request.ExecId, request.StdinOpen = "one", true
	stream, err := c.Execute(testContext(t), request)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the background process runs", func() bool { return running(mark) })
	one, err := s.find("one")
	if err != nil {
		t.Fatal(err)
	}
	one.mu.Lock()
	oom := s.oom
	s.oom = nil
	one.mu.Unlock()
	if _, err := c.WriteStdin(testContext(t), &sandboxv1.WriteStdinRequest{ExecId: "one", Data: []byte("x\n")}); err != nil {
		t.Fatal(err)
	}
	if out, exited, err := collect(stream); exited.GetReason() != sandboxv1.ExitReason_EXIT_REASON_LOST || out != "begun\n" {
		t.Errorf("ended %v, %v, %q", exited, err, out)
	}
	eventually(t, "every process is dead", func() bool { return !running(mark) })
	one.mu.Lock()
	s.oom = oom
	one.mu.Unlock()
	if !strings.Contains(log.String(), "recovered from a panic") {
		t.Error("the panic was not logged")
	}
	if out, _, err := run(t, c, shell("echo well")); out != "well\n" {
		t.Errorf("after the panic: %q, %v", out, err)
	}
}
