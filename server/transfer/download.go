package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/agentcall"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/policy"
)

const maxDownloadItems = 1000

// Download implements SandboxService. If the connection to the agent breaks,
// the caller resumes from an offset: a hash covers what one stream has sent.
func (s *Service) Download(req *sandboxv1.DownloadRequest, stream grpc.ServerStreamingServer[sandboxv1.DownloadResponse]) error {
	var v policy.Violations
	v.SandboxID(req.GetSandboxId())
	if n := len(req.GetItems()); n < 1 || n > maxDownloadItems {
		v.Add("items", "must be 1 to %d", maxDownloadItems)
	}
	for i, item := range req.GetItems() {
		v.PathLength(fmt.Sprintf("items[%d].path", i), item.GetPath())
		v.NotNegative(fmt.Sprintf("items[%d].offset", i), item.GetOffset())
		v.NotNegative(fmt.Sprintf("items[%d].limit", i), item.GetLimit())
	}
	if err := v.Err(); err != nil {
		return err
	}
	ctx := stream.Context()
	c := call.Of(ctx)
	key := agentcall.KeyOf(ctx, req.GetSandboxId())
	retry := s.router.Retry()
	d := &download{items: req.GetItems(), out: stream, call: c}
	for {
		err := s.download(ctx, key, req, d)
		if err == nil {
			return nil
		}
		if s.router.Stopping() || d.begun || !retry.Wait(ctx, err) {
			return s.router.FinalError(ctx, err)
		}
	}
}

func (s *Service) download(ctx context.Context, key agentconn.Key, req *sandboxv1.DownloadRequest, d *download) error {
	conn, err := s.router.Acquire(ctx, key, req.GetExpectedIncarnation())
	if err != nil {
		return err
	}
	defer agentcall.Release(ctx, conn)
	up, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	up, _, err = s.router.WithCallContext(up, conn, req)
	if err != nil {
		return err
	}
	in, err := conn.OpenStream(up, agentv1.AgentService_Download_FullMethodName, req)
	if err == nil {
		err = d.relay(in, func() { cancel(nil) })
	}
	return conn.Error(up, err)
}

// download checks and forwards files. Each item, in order, is a header, chunks
// and a trailer, or a trailer alone.
type download struct {
	items []*sandboxv1.DownloadItem
	out   grpc.ServerStream
	call  *call.Call

	begun bool
	next  int   // item that is open or comes next
	open  bool  // its header has come
	sent  int64 // bytes of it
}

func (d *download) relay(in grpc.ClientStream, cancel func()) error {
	for d.next < len(d.items) {
		var fr agentconn.Frame
		if err := in.RecvMsg(&fr); err != nil {
			if errors.Is(err, io.EOF) {
				return fault.Misbehaved("a download that ended after %d of %d files", d.next, len(d.items))
			}
			return err
		}
		err := d.message(&fr)
		fr.Free()
		if err != nil {
			return err
		}
	}
	return agentconn.ExpectEnd(in, cancel)
}

func (d *download) message(fr *agentconn.Frame) error {
	field, content, err := fr.Parse()
	if err != nil {
		return fault.Misbehaved("%w", err)
	}
	if field == agentconn.FieldChunk {
		n, err := content.Chunk()
		if err != nil {
			return fault.Misbehaved("%w", err)
		}
		item := d.items[d.next]
		if !d.open || (item.Limit != nil && int64(n) > item.GetLimit()-d.sent) {
			return fault.Misbehaved("a chunk of %d bytes where none can be", n)
		}
		d.sent += int64(n)
		d.call.Bytes.Add(int64(n))
		return d.send(fr)
	}
	var m sandboxv1.DownloadResponse
	if err := fr.Decode(&m); err != nil {
		return fault.Misbehaved("%w", err)
	}
	switch p := m.GetPayload().(type) {
	case *sandboxv1.DownloadResponse_Header:
		if d.open || p.Header.GetIndex() != int32(d.next) {
			return fault.Misbehaved("the header of file %d at file %d", p.Header.GetIndex(), d.next)
		}
		d.open = true
	case *sandboxv1.DownloadResponse_Trailer:
		if err := d.trailer(p.Trailer); err != nil {
			return err
		}
	default:
		return fault.Misbehaved("a message of kind %d", field)
	}
	return d.send(&m)
}

func (d *download) trailer(t *sandboxv1.DownloadTrailer) error {
	switch {
	case t.GetIndex() != int32(d.next):
		return fault.Misbehaved("the trailer of file %d at file %d", t.GetIndex(), d.next)
	case !d.open && t.GetError() == nil:
		return fault.Misbehaved("a trailer without a header")
	case t.GetSize() != d.sent:
		return fault.Misbehaved("a trailer for %d bytes after %d", t.GetSize(), d.sent)
	case t.GetError() == nil && len(t.GetSha256()) != 32:
		return fault.Misbehaved("a hash of %d bytes", len(t.GetSha256()))
	}
	d.call.Objects.FileEnded(d.next, t.GetError())
	d.next, d.open, d.sent = d.next+1, false, 0
	return nil
}

func (d *download) send(m any) error {
	d.begun = true
	if err := d.out.SendMsg(m); err != nil {
		return &agentconn.CallerError{Err: err}
	}
	return nil
}
