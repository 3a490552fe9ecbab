package files

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/sandgate/sandgate/agent/fault"
	"github.com/sandgate/sandgate/agent/files/paths"
	"github.com/sandgate/sandgate/agent/payload"
	"github.com/sandgate/sandgate/agent/threads"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

// maxReply bounds a reply, below the 4 MiB that gRPC accepts by default.
const maxReply = 3 << 20

// Upload writes files. The stream has a header, chunks and a trailer for each file. The
// result of a failed file has its error, and its chunks are dropped. The call fails if
// messages are out of order or the stream ends before a trailer. Files with a trailer
// before that stay.
func (s *Service) Upload(stream grpc.ClientStreamingServer[sandboxv1.UploadRequest, sandboxv1.UploadResponse]) error {
	defer s.begin(stream.Context())()
	view, limits, err := s.view(stream.Context())
	if err != nil {
		return err
	}
	defer func() { _ = view.Close() }()

	u := &upload{service: s, view: view, limit: limits.GetMaxFileBytes()}
	defer func() {
		if u.file != nil {
			s.work.Do(u.file.abort)
		}
	}()
	for {
		msg := incoming{UploadRequest: &sandboxv1.UploadRequest{}}
		err := stream.RecvMsg(&msg)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return uploadEnd(err)
		}
		if err := u.takeInSlot(stream.Context(), &msg); err != nil {
			return err
		}
	}
	if err := u.frames.Finish(); err != nil {
		return orderFault(err.Error()).Because(err)
	}
	return stream.SendAndClose(&sandboxv1.UploadResponse{Results: u.results})
}

// uploadEnd converts the error of a stream that ended early.
func uploadEnd(err error) error {
	var f *fault.Error
	if f = asFault("", err); f.Reason() == internal {
		return err // an error of gRPC, such as a message that is too large
	}
	return f
}

func orderFault(text string) *fault.Error {
	return fault.New(code(outOfOrder), outOfOrder, text, nil)
}

// upload is one stream.
type upload struct {
	service *Service
	view    *paths.View
	limit   int64
	frames  streaming.Frames
	results []*sandboxv1.UploadResult
	reply   int // bytes of the results
	file    *intake
}

func (u *upload) takeInSlot(ctx context.Context, msg *incoming) error {
	slot, err := u.service.work.Take(ctx)
	if err != nil {
		msg.Release()
		return asFault("", err)
	}
	defer slot.Release()
	return u.take(threads.With(ctx, slot), msg)
}

// take handles one message. An error ends the stream.
func (u *upload) take(ctx context.Context, msg *incoming) error {
	if msg.Size > 0 {
		return u.chunk(msg.Payload)
	}
	switch p := msg.GetPayload().(type) {
	case *sandboxv1.UploadRequest_Header:
		return u.begin(p.Header)
	case *sandboxv1.UploadRequest_Chunk:
		return u.chunk(payload.Plain(p.Chunk))
	case *sandboxv1.UploadRequest_Trailer:
		return u.finish(ctx, p.Trailer)
	default:
		return orderFault("a message without payload")
	}
}

// chunk writes and then releases the next bytes of the open file.
func (u *upload) chunk(c payload.Payload) error {
	if err := u.frames.Chunk(c.Size); err != nil {
		c.Release()
		return orderFault(err.Error()).Because(err)
	}
	u.file.write(c)
	return nil
}

func (u *upload) begin(h *sandboxv1.UploadHeader) error {
	if err := u.frames.Header(); err != nil {
		return orderFault(err.Error()).Because(err)
	}
	u.file = u.service.newIntake(u.view, h, u.limit)
	return nil
}

// finish completes the open file and keeps its result.
func (u *upload) finish(ctx context.Context, t *sandboxv1.UploadTrailer) error {
	if err := u.frames.Trailer(); err != nil {
		return orderFault(err.Error()).Because(err)
	}
	result := u.file.finish(ctx, t)
	u.file = nil
	if u.reply += proto.Size(result) + 8; u.reply > maxReply {
		return fault.New(code(messageTooLarge), messageTooLarge,
			fmt.Sprintf("the results of %d files do not fit one reply; use several uploads", len(u.results)+1),
			map[string]string{"limit_bytes": fmt.Sprint(maxReply)})
	}
	u.results = append(u.results, result)
	return nil
}
