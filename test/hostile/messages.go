package main

import (
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"sync"

	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

// mostOfMessages announces 16 MiB in each of many calls with a valid token, sends 12 MiB,
// and leaves the rest out. It calls again when the server ends a call.
func mostOfMessages(ctx context.Context, h *host, begun func()) error {
	return unfinished(ctx, h, "WriteFile", 500, mostOf(nil, 16<<20, 12<<20), begun)
}

// mostOfChunks sends all but the last byte of a chunk that is as large as it may be, in as
// many Uploads as a tenant may have at a time.
func mostOfChunks(ctx context.Context, h *host, begun func()) error {
	box, err := h.sandbox(ctx, "a")
	if err != nil {
		return err
	}
	defer func() { _ = box.Delete(context.WithoutCancel(ctx)) }()
	header, err := proto.Marshal(&sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Header{
		Header: &sandboxv1.UploadHeader{SandboxId: box.ID(), Path: "/workspace/x"},
	}})
	if err != nil {
		return err
	}
	const chunk = 4 + streaming.LargeChunk // with the head of its field
	return unfinished(ctx, h, "Upload", 384, mostOf(header, chunk, chunk-1), begun)
}

// mostOf returns the beginning of a call: a whole message, if first is not nil, and of
// another one, which is announced with a length, the first bytes.
func mostOf(first []byte, announced uint32, sent int) endless {
	var head []byte
	if first != nil {
		head = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(first))), first...)
	}
	return endless{head: binary.BigEndian.AppendUint32(append(head, 0), announced), left: sent}
}

// unfinished makes calls that do not end, on connections of 50.
func unfinished(ctx context.Context, h *host, method string, streams int, body endless, begun func()) error {
	const perConn = 50
	var work, sent sync.WaitGroup
	var transport *http.Transport
	for i := range streams {
		if i%perConn == 0 {
			transport = &http.Transport{Protocols: new(http.Protocols)}
			transport.Protocols.SetUnencryptedHTTP2(true)
		}
		sent.Add(1)
		first, transport := sync.OnceFunc(sent.Done), transport
		work.Go(func() {
			defer first()
			for ctx.Err() == nil {
				body := body
				body.ctx, body.sent = ctx, first
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+h.server.Address+"/sandbox.v1.SandboxService/"+method, &body)
				if err != nil {
					return
				}
				req.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}, "Authorization": {"Bearer " + h.tokens["a"]}}
				if resp, err := transport.RoundTrip(req); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
				first()
			}
		})
	}
	sent.Wait()
	begun()
	work.Wait()
	return ctx.Err()
}

// endless is a body that stops before its end.
type endless struct {
	head []byte
	left int
	sent func()
	ctx  context.Context //nolint:containedctx // a reader has no other way to end
}

func (e *endless) Read(p []byte) (int, error) {
	if n := copy(p, e.head); n > 0 {
		e.head = e.head[n:]
		return n, nil
	}
	if n := min(len(p), e.left); n > 0 {
		clear(p[:n])
		e.left -= n
		return n, nil
	}
	e.sent()
	<-e.ctx.Done()
	return 0, e.ctx.Err()
}
