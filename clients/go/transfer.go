package sandgate

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"

	"google.golang.org/grpc/codes"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// resumeAbove is the size above which an upload is resumable. Below, sending it again
// is cheaper than keeping a part.
const resumeAbove = 1 << 20

// upload sends one file, over as many connections as it takes.
type upload struct {
	sandbox *Sandbox
	file    File
	content io.ReadSeeker
	start   int64
	id      string // empty: not resumable
}

// run sends the file until the server has it or rejects it, or the retry window ends.
func (u *upload) run(ctx context.Context) (FileResult, error) {
	end, err := u.content.Seek(0, io.SeekEnd)
	if err != nil || end-u.start <= resumeAbove {
		u.id = ""
	}
	retry, last := u.sandbox.client.retry(u.sandbox.client.retryWindow), int64(0)
	for offset := int64(0); ; {
		result, err := u.attempt(ctx, offset)
		if errors.Is(err, Reason("FEATURE_UNSUPPORTED")) && u.id != "" {
			u.id, offset = "", 0
			continue
		}
		if err == nil || u.id == "" && u.file.CreateOnly {
			return result, err
		}
		for err != nil {
			if u.serverBehind(err) {
				if !retry.pause(ctx, err) {
					return result, err
				}
			} else if !retry.again(ctx, err) {
				return result, err
			}
			offset, err = u.confirmed(ctx)
		}
		if offset > last {
			retry, last = u.sandbox.client.retry(u.sandbox.client.retryWindow), offset
		}
	}
}

// serverBehind reports whether the server is still busy with the broken stream of
// this upload.
func (u *upload) serverBehind(err error) bool {
	return u.id != "" && (errors.Is(err, Reason("UPLOAD_BUSY")) || errors.Is(err, Reason("UPLOAD_OFFSET_MISMATCH")))
}

// confirmed returns the number of bytes that the server has stored.
func (u *upload) confirmed(ctx context.Context) (int64, error) {
	if u.id == "" {
		return 0, nil
	}
	reply, err := u.sandbox.client.stub.GetUpload(ctx, &sandboxv1.GetUploadRequest{
		SandboxId: u.sandbox.id, ExpectedIncarnation: u.sandbox.Incarnation, UploadId: u.id,
	})
	if errors.Is(err, Reason("UPLOAD_NOT_FOUND")) {
		return 0, nil
	}
	return reply.GetOffset(), err
}

// attempt sends the file from an offset over one stream.
func (u *upload) attempt(ctx context.Context, offset int64) (FileResult, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	sum := sha256.New()
	if _, err := u.content.Seek(u.start, io.SeekStart); err != nil {
		return FileResult{}, local(nil, codes.Aborted, err, "the content of %s cannot be read: %v", u.file.Path, err)
	}
	if _, err := io.CopyN(sum, u.content, offset); err != nil {
		return FileResult{}, local(nil, codes.Aborted, err, "the content of %s cannot be read again: %v", u.file.Path, err)
	}
	stream, err := u.sandbox.client.stub.Upload(ctx)
	if err != nil {
		return FileResult{}, err
	}
	err = u.sandbox.send(stream, u.file, &sandboxv1.UploadHeader{UploadId: u.id, Offset: offset}, sum)
	if err != nil && err != io.EOF { //nolint:errorlint // Wrapped, it is the source's.
		return FileResult{}, err
	}
	reply, err := stream.CloseAndRecv()
	if err != nil {
		return FileResult{}, prematureEnd(err)
	}
	if len(reply.GetResults()) != 1 {
		return FileResult{}, local(ErrInternal, codes.DataLoss, nil, "the server broke the protocol: %d results for one file", len(reply.GetResults()))
	}
	return only([]FileResult{resultOf(reply.GetResults()[0], sum.Sum(nil))}, nil)
}

// resultOf checks the server's result for a file against what was sent.
func resultOf(r *sandboxv1.UploadResult, sum []byte) FileResult {
	result := FileResult{Path: r.GetPath(), Size: r.GetSize(), SHA256: r.GetSha256(), Err: fromFile(r.GetPath(), r.GetError())}
	if result.Err == nil && !bytes.Equal(sum, r.GetSha256()) {
		result.Err = mismatch(r.GetPath())
	}
	return result
}

// download receives one or more files, over as many connections as it takes.
type download struct {
	sandbox *Sandbox
	paths   []string
	start   int64  // bytes of the first file to skip
	limit   *int64 // bytes of the first file to read; nil: all
	write   func(i int, p []byte) error
	errs    []error // of single files

	next   int       // the file in transfer
	info   *FileInfo // of that file, or of the last one
	offset int64     // its bytes that were written
	sum    hash.Hash // of its bytes in this stream
	begun  bool      // its header came in this stream
}

// run receives the files until they are complete or rejected, or the retry window
// ends.
func (d *download) run(ctx context.Context) error {
	retry := d.sandbox.client.retry(d.sandbox.client.retryWindow)
	for d.next < len(d.paths) {
		next, offset := d.next, d.offset
		err := d.stream(ctx)
		if err == nil {
			break
		}
		if d.next > next || d.offset > offset {
			retry = d.sandbox.client.retry(d.sandbox.client.retryWindow)
		}
		if !retry.again(ctx, err) {
			return err
		}
	}
	return nil
}

// stream receives what is missing over one stream.
func (d *download) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	request := &sandboxv1.DownloadRequest{SandboxId: d.sandbox.id, ExpectedIncarnation: d.sandbox.Incarnation}
	for _, path := range d.paths[d.next:] {
		request.Items = append(request.Items, &sandboxv1.DownloadItem{Path: path})
	}
	request.Items[0].Offset = d.offset
	if d.limit != nil {
		left := *d.limit - (d.offset - d.start)
		request.Items[0].Limit = &left
	}
	stream, err := d.sandbox.client.stub.Download(ctx, request)
	if err != nil {
		return err
	}
	d.begun = false
	for first := d.next; ; {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) && d.next == len(d.paths) {
			return nil
		}
		if err != nil {
			return prematureEnd(err)
		}
		if err := d.take(message, first); err != nil {
			return err
		}
	}
}

// take handles one message; first is the index of the file that is item 0 of the
// stream.
func (d *download) take(message *sandboxv1.DownloadResponse, first int) error {
	switch m := message.GetPayload().(type) {
	case *sandboxv1.DownloadResponse_Header:
		return d.header(m.Header, first)
	case *sandboxv1.DownloadResponse_Chunk:
		if !d.begun {
			return protocolError("a chunk before its header")
		}
		d.sum.Write(m.Chunk)
		if err := d.write(d.next, m.Chunk); err != nil {
			return local(nil, codes.Aborted, err, "the content of %s cannot be written: %v", d.paths[d.next], err)
		}
		d.offset += int64(len(m.Chunk))
	case *sandboxv1.DownloadResponse_Trailer:
		return d.trailer(m.Trailer, first)
	}
	return nil
}

func (d *download) header(h *sandboxv1.DownloadHeader, first int) error {
	if d.begun || d.next >= len(d.paths) || int(h.GetIndex()) != d.next-first || h.GetOffset() != d.offset {
		return protocolError("a header out of order")
	}
	was, is := d.info, h.GetInfo()
	if d.offset > d.start && (was.GetSize() != is.GetSize() || !was.GetModifyTime().AsTime().Equal(is.GetModifyTime().AsTime())) {
		return local(ErrFile, codes.Aborted, nil, "%s changed while it was read", d.paths[d.next])
	}
	d.info, d.sum, d.begun = is, sha256.New(), true
	return nil
}

func (d *download) trailer(t *sandboxv1.DownloadTrailer, first int) error {
	if d.next >= len(d.paths) || int(t.GetIndex()) != d.next-first || t.GetError() == nil && !d.begun {
		return protocolError("a trailer out of order")
	}
	path := d.paths[d.next]
	if t.GetError() != nil {
		d.errs[d.next] = fromFile(path, t.GetError())
	} else if !bytes.Equal(t.GetSha256(), d.sum.Sum(nil)) {
		d.errs[d.next] = mismatch(path)
	}
	d.next, d.offset, d.begun = d.next+1, 0, false
	return nil
}

func protocolError(what string) error {
	return local(ErrInternal, codes.DataLoss, nil, "the server broke the protocol: %s", what)
}
