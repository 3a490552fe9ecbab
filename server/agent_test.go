package server

import (
	"context"
	"errors"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandgate/sandgate/agent/protocol"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/agentconn"
)

// script is the behaviour of an agent.
type script struct {
	minor int32                           // protocol minor; 0: ours
	hello func(ctx context.Context) error // called before Hello replies
	// extra is added to the reply of Hello: unknown fields.
	extra []byte
	// execute runs one Execute; nil: say "hello" and exit 0.
	execute  func(a *scriptedAgent, req *sandboxv1.ExecuteRequest, out emitter) error
	attach   func(a *scriptedAgent, req *sandboxv1.AttachRequest, out emitter) error
	upload   func(in grpc.ClientStreamingServer[sandboxv1.UploadRequest, sandboxv1.UploadResponse]) error
	download func(req *sandboxv1.DownloadRequest, out grpc.ServerStream) error
	move     func(ctx context.Context, req *sandboxv1.MoveFileRequest) (*sandboxv1.MoveFileResponse, error)
	forward  func(stream grpc.BidiStreamingServer[sandboxv1.ForwardRequest, sandboxv1.ForwardResponse]) error
	replays  bool // it says that it knows calls by their ids
	stat     func(req *sandboxv1.StatFileRequest) (*sandboxv1.StatFileResponse, error)
	// raw is the whole encoded reply to ListProcesses.
	raw []byte
}

// scriptedAgent is an agent that follows its script.
type scriptedAgent struct {
	agentv1.UnimplementedAgentServiceServer
	script
	incarnation string
	running     atomic.Int32
	idle        atomic.Pointer[func() time.Duration] // nil: idle for ever
	hellos      atomic.Int32
	// cancelled gets a value when a stream's caller went away.
	cancelled chan struct{}
	mu        sync.Mutex
	execs     map[string]bool
	last      *agentv1.CallContext // of Execute
}

func (a *scriptedAgent) Hello(ctx context.Context, _ *agentv1.HelloRequest) (*agentv1.HelloResponse, error) {
	a.hellos.Add(1)
	if a.hello != nil {
		if err := a.hello(ctx); err != nil {
			return nil, err
		}
	}
	minor := a.minor
	if minor == 0 {
		minor = protocol.Minor
	}
	resp := &agentv1.HelloResponse{AgentVersion: "test", ProtocolMinor: minor, Incarnation: a.incarnation}
	resp.ProtoReflect().SetUnknown(a.extra)
	if a.replays {
		resp.Capabilities = []string{protocol.CallIDCapability}
	}
	return resp, nil
}

func (a *scriptedAgent) ListProcesses(context.Context, *sandboxv1.ListProcessesRequest) (*sandboxv1.ListProcessesResponse, error) {
	reply := new(sandboxv1.ListProcessesResponse)
	reply.ProtoReflect().SetUnknown(a.raw)
	return reply, nil
}

func (a *scriptedAgent) GetActivity(context.Context, *agentv1.GetActivityRequest) (*agentv1.GetActivityResponse, error) {
	idle := time.Duration(math.MaxInt64)
	if read := a.idle.Load(); read != nil {
		idle = (*read)()
	}
	return &agentv1.GetActivityResponse{RunningCommands: a.running.Load(), IdleTime: durationpb.New(idle)}, nil
}

func (a *scriptedAgent) Execute(req *sandboxv1.ExecuteRequest, stream grpc.ServerStreamingServer[sandboxv1.ExecuteResponse]) error {
	id := req.GetExecId()
	called, err := protocol.CallContext(stream.Context())
	if err != nil {
		return err
	}
	a.mu.Lock()
	joined := a.execs[id]
	a.execs[id] = true
	a.last = called
	a.mu.Unlock()
	out := emitter{stream: stream, incarnation: a.incarnation, execID: id, joined: joined}
	if a.execute != nil {
		return a.execute(a, req, out)
	}
	return errors.Join(out.started(0), out.output(0, "hello"), out.exited(5, 0))
}

func (a *scriptedAgent) Attach(req *sandboxv1.AttachRequest, stream grpc.ServerStreamingServer[sandboxv1.AttachResponse]) error {
	out := emitter{stream: stream, incarnation: a.incarnation, execID: req.GetExecId()}
	if a.attach != nil {
		return a.attach(a, req, out)
	}
	return agentStatus(codes.NotFound, "EXEC_NOT_FOUND", "no such command")
}

func (a *scriptedAgent) StatFile(ctx context.Context, req *sandboxv1.StatFileRequest) (*sandboxv1.StatFileResponse, error) {
	if _, err := protocol.CallContext(ctx); err != nil {
		return nil, err
	}
	if a.stat != nil {
		return a.stat(req)
	}
	return &sandboxv1.StatFileResponse{
		Info: &sandboxv1.FileInfo{Path: req.GetPath()},
	}, nil
}

func (a *scriptedAgent) MoveFile(ctx context.Context, req *sandboxv1.MoveFileRequest) (*sandboxv1.MoveFileResponse, error) {
	if a.move != nil {
		return a.move(ctx, req)
	}
	return &sandboxv1.MoveFileResponse{}, nil
}

func (a *scriptedAgent) Upload(in grpc.ClientStreamingServer[sandboxv1.UploadRequest, sandboxv1.UploadResponse]) error {
	if a.upload != nil {
		return a.upload(in)
	}
	return receiveAll(in)
}

// Forward answers by its script; without one it echoes.
func (a *scriptedAgent) Forward(stream grpc.BidiStreamingServer[sandboxv1.ForwardRequest, sandboxv1.ForwardResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if a.forward != nil {
		return a.forward(stream)
	}
	if err := stream.Send(opened(a.incarnation, first.GetStart().GetPort())); err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		switch {
		case err != nil:
			return err
		case m.GetEof() != nil:
			return stream.Send(eof())
		}
		if err := stream.Send(data(m.GetData())); err != nil {
			return err
		}
	}
}

func (a *scriptedAgent) Download(req *sandboxv1.DownloadRequest, out grpc.ServerStreamingServer[sandboxv1.DownloadResponse]) error {
	if a.download != nil {
		return a.download(req, out)
	}
	return agentStatus(codes.Unimplemented, "FEATURE_UNSUPPORTED", "not here")
}

// receiveAll is an upload that goes well.
func receiveAll(in grpc.ClientStreamingServer[sandboxv1.UploadRequest, sandboxv1.UploadResponse]) error {
	resp := &sandboxv1.UploadResponse{}
	for {
		m, err := in.Recv()
		if errors.Is(err, io.EOF) {
			return in.SendAndClose(resp)
		}
		if err != nil {
			return err
		}
		switch p := m.GetPayload().(type) {
		case *sandboxv1.UploadRequest_Header:
			resp.Results = append(resp.Results, &sandboxv1.UploadResult{Path: p.Header.GetPath()})
		case *sandboxv1.UploadRequest_Chunk:
			resp.GetResults()[len(resp.GetResults())-1].Size += int64(len(p.Chunk))
		case *sandboxv1.UploadRequest_Trailer:
		}
	}
}

// agentStatus is an error as agents make it.
func agentStatus(code codes.Code, reason, message string) error {
	st, err := status.New(code, message).WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: "sandgate"})
	if err != nil {
		panic(err)
	}
	return st.Err()
}

// emitter sends events.
type emitter struct {
	stream              grpc.ServerStream
	incarnation, execID string
	joined              bool
}

func (e emitter) send(m *sandboxv1.ExecuteResponse) error {
	raw, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	return e.raw(raw)
}

func (e emitter) raw(b []byte) error {
	return e.stream.SendMsg(&agentconn.Frame{Data: mem.BufferSlice{mem.SliceBuffer(b)}})
}

func (e emitter) started(position int64) error {
	return e.send(&sandboxv1.ExecuteResponse{Event: &sandboxv1.ExecuteResponse_Started{Started: &sandboxv1.Started{
		ExecId: e.execID, Incarnation: e.incarnation, Pid: 7, Position: position, Joined: e.joined,
	}}})
}

func (e emitter) output(position int64, data string) error {
	return e.send(outputEvent(position, data))
}

func outputEvent(position int64, data string) *sandboxv1.ExecuteResponse {
	return &sandboxv1.ExecuteResponse{Event: &sandboxv1.ExecuteResponse_Output{Output: &sandboxv1.Output{
		Stream: sandboxv1.Stream_STREAM_STDOUT, Position: position, Data: []byte(data),
	}}}
}

func (e emitter) gap(from, to int64) error {
	return e.send(&sandboxv1.ExecuteResponse{Event: &sandboxv1.ExecuteResponse_Gap{Gap: &sandboxv1.Gap{Start: from, End: to}}})
}

func (e emitter) exited(position int64, code int32) error {
	return e.send(&sandboxv1.ExecuteResponse{Event: &sandboxv1.ExecuteResponse_Exited{Exited: &sandboxv1.Exited{
		Reason: sandboxv1.ExitReason_EXIT_REASON_EXITED, ExitCode: &code, Position: position,
	}}})
}
