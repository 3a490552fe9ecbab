package server

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/streaming"
)

func header(h *sandboxv1.UploadHeader) *sandboxv1.UploadRequest {
	return &sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Header{Header: h}}
}

func trailer() *sandboxv1.UploadRequest {
	return &sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Trailer{Trailer: &sandboxv1.UploadTrailer{}}}
}

func chunk(n int) *sandboxv1.UploadRequest {
	return &sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Chunk{Chunk: make([]byte, n)}}
}

func (h *harness) upload(messages ...*sandboxv1.UploadRequest) (*sandboxv1.UploadResponse, error) {
	h.t.Helper()
	stream, err := h.client.Upload(h.t.Context())
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		if err := stream.Send(m); err != nil {
			break // CloseAndRecv says why
		}
	}
	return stream.CloseAndRecv()
}

func TestUpload(t *testing.T) {
	h := newHarness(t, nil)
	h.create("a")
	resp, err := h.upload(header(&sandboxv1.UploadHeader{SandboxId: "a", Path: "/one"}), chunk(streaming.LargeChunk), chunk(100), trailer(),
		header(&sandboxv1.UploadHeader{Path: "/two"}), trailer(), header(&sandboxv1.UploadHeader{SandboxId: "a", Path: "/three"}), chunk(1), trailer())
	if err != nil {
		t.Fatal(err)
	}
	var sizes []int64
	for _, r := range resp.GetResults() {
		sizes = append(sizes, r.GetSize())
	}
	if len(sizes) != 3 || sizes[0] != streaming.LargeChunk+100 || sizes[1] != 0 || sizes[2] != 1 {
		t.Fatalf("got %v", resp)
	}
}

func TestUploadRefusals(t *testing.T) {
	h := newHarness(t, nil)
	h.create("a")
	first := header(&sandboxv1.UploadHeader{SandboxId: "a", Path: "/one"})
	for name, c := range map[string]struct {
		messages []*sandboxv1.UploadRequest
		reason   string
	}{
		"nothing":       {nil, "UPLOAD_OUT_OF_ORDER"},
		"chunk first":   {[]*sandboxv1.UploadRequest{chunk(1), first}, "UPLOAD_OUT_OF_ORDER"},
		"empty message": {[]*sandboxv1.UploadRequest{first, {}}, "UPLOAD_OUT_OF_ORDER"},
		"empty chunk":   {[]*sandboxv1.UploadRequest{first, chunk(0)}, "UPLOAD_OUT_OF_ORDER"},
		"large chunk":   {[]*sandboxv1.UploadRequest{first, chunk(streaming.LargeChunk + 1)}, "MESSAGE_TOO_LARGE"},
		"trailer first": {[]*sandboxv1.UploadRequest{trailer(), first}, "UPLOAD_OUT_OF_ORDER"},
		"short sum": {[]*sandboxv1.UploadRequest{first, {Payload: &sandboxv1.UploadRequest_Trailer{
			Trailer: &sandboxv1.UploadTrailer{Sha256: []byte{1}}}}}, "REQUEST_INVALID"},
		"negative size": {[]*sandboxv1.UploadRequest{first, {Payload: &sandboxv1.UploadRequest_Trailer{
			Trailer: &sandboxv1.UploadTrailer{Size: new(int64(-1))}}}}, "REQUEST_INVALID"},
		"no sandbox":    {[]*sandboxv1.UploadRequest{header(&sandboxv1.UploadHeader{Path: "/x"})}, "REQUEST_INVALID"},
		"other sandbox": {[]*sandboxv1.UploadRequest{first, header(&sandboxv1.UploadHeader{SandboxId: "b", Path: "/x"})}, "REQUEST_INVALID"},
		"short hash":    {[]*sandboxv1.UploadRequest{header(&sandboxv1.UploadHeader{SandboxId: "a", Path: "/x", Sha256: []byte{1}})}, "REQUEST_INVALID"},
		"offset alone":  {[]*sandboxv1.UploadRequest{header(&sandboxv1.UploadHeader{SandboxId: "a", Path: "/x", Offset: 1})}, "REQUEST_INVALID"},
		"unknown":       {[]*sandboxv1.UploadRequest{header(&sandboxv1.UploadHeader{SandboxId: "nope", Path: "/x"})}, "SANDBOX_NOT_FOUND"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := h.upload(c.messages...)
			wantReason(t, err, c.reason)
		})
	}
}

// What the server does not check does not reach the agent.
func TestUploadOfUnknownMessages(t *testing.T) {
	h := newHarness(t, nil)
	h.create("a")
	stream, err := h.client.Upload(t.Context(), grpc.ForceCodecV2(agentconn.NewCodec()))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(header(&sandboxv1.UploadHeader{SandboxId: "a", Path: "/x"})); err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(&agentconn.Frame{Data: mem.BufferSlice{mem.SliceBuffer{0x22, 0x00}}}); err != nil {
		t.Fatal(err)
	}
	_, err = stream.CloseAndRecv()
	wantReason(t, err, "UPLOAD_OUT_OF_ORDER")
}

func TestUploadCancelReachesAgent(t *testing.T) {
	h := newHarness(t, nil)
	got := make(chan error, 1)
	h.provider.script.upload = func(in grpc.ClientStreamingServer[sandboxv1.UploadRequest, sandboxv1.UploadResponse]) error {
		for {
			if _, err := in.Recv(); err != nil {
				got <- err
				return err
			}
		}
	}
	h.create("a")
	_, err := h.upload(header(&sandboxv1.UploadHeader{SandboxId: "a", Path: "/x"}), chunk(10), chunk(0))
	wantReason(t, err, "UPLOAD_OUT_OF_ORDER")
	if err := <-got; errors.Is(err, io.EOF) {
		t.Fatal("a broken upload reached the agent as a complete one")
	}
}

func TestDownload(t *testing.T) {
	h := newHarness(t, nil)
	content := bytes.Repeat([]byte("sandgate"), 100_000)
	h.provider.script.download = func(req *sandboxv1.DownloadRequest, out grpc.ServerStream) error {
		for i, item := range req.GetItems() {
			if item.GetPath() == "/missing" {
				err := out.SendMsg(&sandboxv1.DownloadResponse{Payload: &sandboxv1.DownloadResponse_Trailer{Trailer: &sandboxv1.DownloadTrailer{
					Index: int32(i), Error: &sandboxv1.FileError{Reason: sandboxv1.ErrorReason_ERROR_REASON_FILE_NOT_FOUND},
				}}})
				if err != nil {
					return err
				}
				continue
			}
			hash := sha256.Sum256(content)
			messages := []*sandboxv1.DownloadResponse{
				{Payload: &sandboxv1.DownloadResponse_Header{Header: &sandboxv1.DownloadHeader{Index: int32(i)}}},
				{Payload: &sandboxv1.DownloadResponse_Chunk{Chunk: content[:300_000]}},
				{Payload: &sandboxv1.DownloadResponse_Chunk{Chunk: content[300_000:]}},
				{Payload: &sandboxv1.DownloadResponse_Trailer{Trailer: &sandboxv1.DownloadTrailer{
					Index: int32(i), Size: int64(len(content)), Sha256: hash[:]}}},
			}
			for _, m := range messages {
				if err := out.SendMsg(m); err != nil {
					return err
				}
			}
		}
		return nil
	}
	h.create("a")
	stream, err := h.client.Download(t.Context(), &sandboxv1.DownloadRequest{SandboxId: "a",
		Items: []*sandboxv1.DownloadItem{{Path: "/x"}, {Path: "/missing"}, {Path: "/y"}}})
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	var trailers []*sandboxv1.DownloadTrailer
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, m.GetChunk()...)
		if m.GetTrailer() != nil {
			trailers = append(trailers, m.GetTrailer())
		}
	}
	if !bytes.Equal(got, append(append([]byte(nil), content...), content...)) || len(trailers) != 3 || trailers[1].GetError() == nil {
		t.Fatalf("%d bytes, %v", len(got), trailers)
	}
}
