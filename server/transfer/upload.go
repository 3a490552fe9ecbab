// Package transfer implements Upload and Download. It checks the order and sizes of
// messages, and forwards content undecoded.
package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"google.golang.org/grpc"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/agentcall"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/audit"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/policy"
)

// Service implements the calls of SandboxService that carry files. Make one with New.
type Service struct {
	router *agentcall.Router
	audit  *audit.Recorder
}

// New returns a Service. It records the start of each uploaded file.
func New(r *agentcall.Router, w *audit.Recorder) *Service { return &Service{router: r, audit: w} }

// Upload implements SandboxService. The server forwards chunks undecoded. It
// decodes headers and trailers, so that nothing else reaches the agent. The agent
// checks their order and writes no file without its trailer, so the server
// forwards the end of the caller's stream as it is.
func (s *Service) Upload(stream grpc.ClientStreamingServer[sandboxv1.UploadRequest, sandboxv1.UploadResponse]) error {
	ctx := stream.Context()
	u := &upload{s: s, in: stream, call: call.Of(ctx)}
	header, err := u.first()
	if err != nil {
		return err
	}
	key := agentcall.KeyOf(ctx, header.GetSandboxId())
	retry := s.router.Retry()
	var conn *agentconn.Conn
	for {
		if conn, err = s.router.Acquire(ctx, key, header.GetExpectedIncarnation()); err == nil {
			break
		}
		if s.router.Stopping() || !retry.Wait(ctx, err) {
			return s.router.FinalError(ctx, err)
		}
	}
	defer conn.Release()
	resp, err := u.forward(ctx, conn, header)
	if err != nil {
		if fault.IsMisbehaved(err) {
			conn.Cut()
		}
		// A file may be written although its result is lost.
		if errors.Is(err, agentconn.ErrBroken) {
			return fault.OutcomeUnknown(s.router.FinalError(ctx, err))
		}
		return s.router.FinalError(ctx, err)
	}
	for i, result := range resp.GetResults() {
		u.call.Objects.FileEnded(i, result.GetError())
	}
	return stream.SendAndClose(resp)
}

// maxUploadFiles bounds the files of one upload. Each has a result, and is held
// for the audit record of its end.
const maxUploadFiles = 10_000

// upload forwards one caller's files.
type upload struct {
	s       *Service
	in      grpc.ServerStream
	headers int
	sandbox string
	call    *call.Call
	// closing is set once the agent may answer.
	closing atomic.Bool
}

// receive reads the next message. It returns a header or trailer to forward, or
// nil for a chunk, which stays in fr.
func (u *upload) receive(fr *agentconn.Frame) (*sandboxv1.UploadRequest, error) {
	if err := u.in.RecvMsg(fr); err != nil {
		return nil, err
	}
	field, content, err := fr.Parse()
	switch {
	case err != nil:
	case field == agentconn.FieldChunk:
		var n int
		if n, err = content.Chunk(); err == nil {
			u.call.Bytes.Add(int64(n))
			return nil, nil
		}
	case field == agentconn.FieldHeader || field == agentconn.FieldTrailer:
		var m sandboxv1.UploadRequest
		if err = fr.Decode(&m); err == nil {
			fr.Free()
			return &m, u.accept(&m)
		}
	}
	fr.Free()
	return nil, outOfOrder("a message is not exactly one header, one trailer or one chunk of 1 byte to 256 KiB").WithCause(err)
}

// accept checks a header or trailer.
func (u *upload) accept(m *sandboxv1.UploadRequest) error {
	if t := m.GetTrailer(); t != nil {
		return u.checkTrailer(t)
	}
	h := m.GetHeader()
	if u.headers >= maxUploadFiles {
		var v policy.Violations
		v.Add(fmt.Sprintf("header[%d]", u.headers), "is beyond the %d files of one upload; begin another", maxUploadFiles)
		return v.Err()
	}
	return errors.Join(u.record(h), u.check(h))
}

func (u *upload) checkTrailer(t *sandboxv1.UploadTrailer) error {
	field := fmt.Sprintf("trailer[%d].", max(u.headers-1, 0))
	var v policy.Violations
	v.NotNegative(field+"size", t.GetSize())
	v.SHA256(field+"sha256", t.GetSha256())
	return v.Err()
}

// record writes the start record of a file.
func (u *upload) record(h *sandboxv1.UploadHeader) error {
	if u.headers == 0 {
		return u.call.Begin(u.in.Context(), u.s.audit, h)
	}
	return u.call.BeginFile(u.in.Context(), u.s.audit, h.GetPath())
}

func (u *upload) check(h *sandboxv1.UploadHeader) error {
	u.headers++
	field := fmt.Sprintf("header[%d].", u.headers-1)
	v := policy.CheckAccess(field+"access", h.GetAccess())
	if u.headers == 1 {
		v.SandboxID(h.GetSandboxId())
		u.sandbox = h.GetSandboxId()
	} else if id := h.GetSandboxId(); id != "" && id != u.sandbox {
		v.Add(field+"sandbox_id", "must be that of the first header")
	}
	v.ID(field+"upload_id", h.GetUploadId(), false)
	v.NotNegative(field+"offset", h.GetOffset())
	v.NotNegative(field+"size", h.GetSize())
	if h.GetOffset() > 0 && h.GetUploadId() == "" {
		v.Add(field+"offset", "needs an upload_id")
	}
	v.SHA256(field+"sha256", h.GetSha256())
	v.Mode(h.Mode)
	// An invalid path fails that file only: the agent reports it.
	return v.Err()
}

func (u *upload) first() (*sandboxv1.UploadHeader, error) {
	var fr agentconn.Frame
	m, err := u.receive(&fr)
	switch {
	case errors.Is(err, io.EOF):
		return nil, outOfOrder("the stream ended before the first header")
	case err != nil:
		return nil, err
	case m.GetHeader() == nil:
		fr.Free()
		return nil, outOfOrder("the first message must be a header")
	}
	return m.GetHeader(), nil
}

func outOfOrder(format string, args ...any) *fault.Error {
	return fault.New(sandboxv1.ErrorReason_ERROR_REASON_UPLOAD_OUT_OF_ORDER, format, args...)
}

// forward sends everything to the agent and returns its answer. The agent may
// answer before the caller has finished, so one goroutine receives from the
// caller and another from the agent. A failure of either ends both.
func (u *upload) forward(ctx context.Context, conn *agentconn.Conn, header *sandboxv1.UploadHeader) (*sandboxv1.UploadResponse, error) {
	up, cancel := u.s.router.StreamContext(ctx)
	defer cancel(nil)
	up, _, err := u.s.router.WithCallContext(up, conn, header)
	if err != nil {
		return nil, err
	}
	out, err := conn.Agent.Upload(up)
	if err != nil {
		return nil, agentconn.Error(up, err)
	}
	err = out.SendMsg(&sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Header{Header: header}})
	sent := make(chan int, 1)
	if err == nil {
		go func() {
			err := fault.Catch(func() error { return u.forwardMessages(out) })
			if err != nil && !errors.Is(err, io.EOF) {
				cancel(err)
			}
			sent <- u.headers
		}()
	}
	var resp sandboxv1.UploadResponse
	if err := out.RecvMsg(&resp); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, fault.Misbehaved("an upload that ended without a response")
		}
		return nil, agentconn.Error(up, err)
	}
	if !u.closing.Load() {
		return nil, fault.Misbehaved("a response before the upload's end")
	}
	if n, got := <-sent, len(resp.GetResults()); got != n {
		return nil, fault.Misbehaved("%d results of %d files", got, n)
	}
	return &resp, nil
}

// forwardMessages forwards the caller's messages. io.EOF means that the agent
// has ended the stream; RecvMsg returns the reason.
func (u *upload) forwardMessages(out grpc.ClientStream) error {
	for {
		var fr agentconn.Frame
		m, err := u.receive(&fr)
		if errors.Is(err, io.EOF) {
			u.closing.Store(true)
			return out.CloseSend()
		}
		if err != nil {
			return err
		}
		if m != nil {
			err = out.SendMsg(m)
		} else {
			err = out.SendMsg(&fr)
		}
		if err != nil {
			return err
		}
	}
}
