package providertest

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/sandgate/sandgate/conformance"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// agentClient is a conformance.Client of an agent, without a server between.
type agentClient struct{ agent agentv1.AgentServiceClient }

var _ conformance.Client = agentClient{}

func (c agentClient) Execute(ctx context.Context, in *sandboxv1.ExecuteRequest, opts ...grpc.CallOption) (grpc.ServerStreamingClient[sandboxv1.ExecuteResponse], error) {
	stream, err := c.agent.Execute(ctx, &agentv1.ExecuteRequest{Request: in}, opts...)
	if err != nil {
		return nil, err
	}
	return executeStream{stream}, nil
}

type executeStream struct {
	grpc.ServerStreamingClient[agentv1.ExecuteResponse]
}

func (s executeStream) Recv() (*sandboxv1.ExecuteResponse, error) {
	m, err := s.ServerStreamingClient.Recv()
	if err != nil {
		return nil, err
	}
	out := &sandboxv1.ExecuteResponse{}
	switch e := m.GetEvent().(type) {
	case *agentv1.ExecuteResponse_Started:
		out.Event = &sandboxv1.ExecuteResponse_Started{Started: e.Started}
	case *agentv1.ExecuteResponse_Output:
		out.Event = &sandboxv1.ExecuteResponse_Output{Output: e.Output}
	case *agentv1.ExecuteResponse_Gap:
		out.Event = &sandboxv1.ExecuteResponse_Gap{Gap: e.Gap}
	case *agentv1.ExecuteResponse_Exited:
		out.Event = &sandboxv1.ExecuteResponse_Exited{Exited: e.Exited}
	default:
		return nil, fmt.Errorf("unknown event %T", e)
	}
	return out, nil
}

func (c agentClient) ListProcesses(ctx context.Context, in *sandboxv1.ListProcessesRequest, opts ...grpc.CallOption) (*sandboxv1.ListProcessesResponse, error) {
	out, err := c.agent.ListProcesses(ctx, &agentv1.ListProcessesRequest{Request: in}, opts...)
	return out.GetResponse(), err
}

func (c agentClient) Upload(ctx context.Context, opts ...grpc.CallOption) (grpc.ClientStreamingClient[sandboxv1.UploadRequest, sandboxv1.UploadResponse], error) {
	stream, err := c.agent.Upload(ctx, opts...)
	if err != nil {
		return nil, err
	}
	first := &agentv1.UploadRequest{Payload: &agentv1.UploadRequest_Envelope{Envelope: &agentv1.UploadEnvelope{}}}
	if err := stream.Send(first); err != nil {
		return nil, err
	}
	return uploadStream{ClientStream: stream, agent: stream}, nil
}

type uploadStream struct {
	grpc.ClientStream
	agent grpc.ClientStreamingClient[agentv1.UploadRequest, agentv1.UploadResponse]
}

func (s uploadStream) Send(m *sandboxv1.UploadRequest) error {
	out := &agentv1.UploadRequest{}
	switch e := m.GetPayload().(type) {
	case *sandboxv1.UploadRequest_Header:
		out.Payload = &agentv1.UploadRequest_Header{Header: e.Header}
	case *sandboxv1.UploadRequest_Chunk:
		out.Payload = &agentv1.UploadRequest_Chunk{Chunk: e.Chunk}
	case *sandboxv1.UploadRequest_Trailer:
		out.Payload = &agentv1.UploadRequest_Trailer{Trailer: e.Trailer}
	}
	return s.agent.Send(out)
}

func (s uploadStream) CloseAndRecv() (*sandboxv1.UploadResponse, error) {
	out, err := s.agent.CloseAndRecv()
	return out.GetResponse(), err
}

func (c agentClient) Download(ctx context.Context, in *sandboxv1.DownloadRequest, opts ...grpc.CallOption) (grpc.ServerStreamingClient[sandboxv1.DownloadResponse], error) {
	stream, err := c.agent.Download(ctx, &agentv1.DownloadRequest{Request: in}, opts...)
	if err != nil {
		return nil, err
	}
	return downloadStream{stream}, nil
}

type downloadStream struct {
	grpc.ServerStreamingClient[agentv1.DownloadResponse]
}

func (s downloadStream) Recv() (*sandboxv1.DownloadResponse, error) {
	m, err := s.ServerStreamingClient.Recv()
	if err != nil {
		return nil, err
	}
	out := &sandboxv1.DownloadResponse{}
	switch e := m.GetPayload().(type) {
	case *agentv1.DownloadResponse_Header:
		out.Payload = &sandboxv1.DownloadResponse_Header{Header: e.Header}
	case *agentv1.DownloadResponse_Chunk:
		out.Payload = &sandboxv1.DownloadResponse_Chunk{Chunk: e.Chunk}
	case *agentv1.DownloadResponse_Trailer:
		out.Payload = &sandboxv1.DownloadResponse_Trailer{Trailer: e.Trailer}
	default:
		return nil, fmt.Errorf("unknown payload %T", e)
	}
	return out, nil
}
