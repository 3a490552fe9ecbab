package preview

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"path"
	"regexp"
	"strconv"
	"strings"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// file serves a request for a file.
func (h *Handler) file(w http.ResponseWriter, r *http.Request, p permit) {
	if r.URL.Path != urlPath(p.claims) {
		unauthorized(w, r)
		return
	}
	read := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch {
	case p.claims.Put && r.Method == http.MethodPut:
		h.put(w, r, p)
	case !p.claims.Put && read:
		h.get(w, r, p)
	default:
		allow := "GET, HEAD"
		if p.claims.Put {
			allow = "PUT"
		}
		w.Header().Set("Allow", allow)
		fail(w, r, &failure{status: http.StatusMethodNotAllowed, reason: "CALL_FORBIDDEN", message: "this URL is for " + allow})
	}
}

// maxRanges bounds the ranges of one request; with more of them it gets the whole file.
const maxRanges = 16

// get serves a file, or ranges of it.
func (h *Handler) get(w http.ResponseWriter, r *http.Request, p permit) {
	if strings.Count(r.Header.Get("Range"), ",") >= maxRanges {
		r.Header.Del("Range") // each one is a call of its own
	}
	d := &download{ctx: r.Context(), sandboxes: h.cfg.Sandboxes(p.principal()), claims: p.claims}
	defer d.Close()
	if err := d.open(firstByte(r)); err != nil {
		if !h.resumed(w, r, p, err) {
			fail(w, r, fileFailure(err))
		}
		return
	}
	modified := d.info.GetModifyTime().AsTime()
	header := w.Header()
	private(header)
	header.Set("ETag", fmt.Sprintf(`"%x-%x"`, modified.UnixNano(), d.info.GetSize()))
	kind := mime.TypeByExtension(path.Ext(p.claims.Path))
	if kind == "" {
		kind = "application/octet-stream"
	}
	header.Set("Content-Type", kind)
	// Content of a sandbox runs no script with the rights of a page.
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Content-Security-Policy", "sandbox; default-src 'none'; img-src 'self' data:; media-src 'self'; style-src 'unsafe-inline'")
	http.ServeContent(w, r, "", modified, d)
	d.end()
	if d.err != nil {
		// Part of the response may be on its way. Without its end it is no success.
		panic(http.ErrAbortHandler)
	}
}

var rangePattern = regexp.MustCompile(`^bytes=(\d{1,18})-`)

// firstByte returns where a request's first range begins.
func firstByte(r *http.Request) int64 {
	m := rangePattern.FindStringSubmatch(r.Header.Get("Range"))
	if m == nil {
		return 0
	}
	n, _ := strconv.ParseInt(m[1], 10, 64) // it has at most 18 digits
	return n
}

// download reads one version of a file. It is an io.ReadSeeker: a Read at another
// offset than the last one's end opens another stream.
type download struct {
	ctx       context.Context //nolint:containedctx // of the request that it lives for
	sandboxes sandboxv1.SandboxServiceClient
	claims    Claims

	stream sandboxv1.SandboxService_DownloadClient
	cancel context.CancelCauseFunc
	info   *sandboxv1.FileInfo // as it was first
	at     int64               // of the open stream
	want   int64
	rest   []byte
	err    error // that ended a Read
}

var _ io.ReadSeeker = (*download)(nil)

var errChanged = errors.New("the file changed while it was read")

// fileError is a FileError as an error.
type fileError struct{ *sandboxv1.FileError }

func (e fileError) Error() string { return e.GetMessage() }

// open opens the file at an offset.
func (d *download) open(offset int64) error {
	d.Close()
	ctx, cancel := context.WithCancelCause(d.ctx)
	d.cancel, d.rest, d.at, d.want = cancel, nil, offset, offset
	stream, err := d.sandboxes.Download(ctx, &sandboxv1.DownloadRequest{
		SandboxId: d.claims.SandboxID, ExpectedIncarnation: d.claims.Incarnation,
		Access: d.claims.Access, Items: []*sandboxv1.DownloadItem{{Path: d.claims.Path, Offset: offset}},
	})
	if err != nil {
		return err
	}
	d.stream = stream
	m, err := stream.Recv()
	switch {
	case err != nil:
		return err
	case m.GetTrailer().GetError() != nil:
		return fileError{m.GetTrailer().GetError()}
	case m.GetHeader() == nil:
		return errBroken
	}
	now := m.GetHeader().GetInfo()
	if d.info != nil && (now.GetSize() != d.info.GetSize() || !now.GetModifyTime().AsTime().Equal(d.info.GetModifyTime().AsTime())) {
		return errChanged
	}
	d.info = now
	return nil
}

// Read implements io.Reader.
func (d *download) Read(p []byte) (int, error) {
	n, err := d.read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		d.err = err
	}
	return n, err
}

func (d *download) read(p []byte) (int, error) {
	if d.want >= d.info.GetSize() {
		return 0, io.EOF
	}
	if d.want != d.at {
		if err := d.open(d.want); err != nil {
			return 0, err
		}
	}
	for len(d.rest) == 0 {
		m, err := d.stream.Recv()
		switch {
		case err != nil && !errors.Is(err, io.EOF):
			return 0, err
		case m.GetTrailer().GetError() != nil:
			return 0, fileError{m.GetTrailer().GetError()}
		case m.GetChunk() == nil:
			return 0, errChanged // it became shorter
		}
		d.rest = m.GetChunk()
	}
	n := copy(p, d.rest)
	d.rest = d.rest[n:]
	d.at += int64(n)
	d.want = d.at
	return n, nil
}

// end receives the trailer of a file that was read to its end, so that the call ends
// well, and its error counts.
func (d *download) end() {
	if d.err != nil || d.at < d.info.GetSize() {
		return
	}
	m, err := d.stream.Recv()
	if e := m.GetTrailer().GetError(); e != nil {
		d.err = fileError{e}
	}
	for err == nil && m.GetChunk() == nil {
		m, err = d.stream.Recv()
	}
}

// Seek implements io.Seeker.
func (d *download) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += d.want
	case io.SeekEnd:
		offset += d.info.GetSize()
	}
	if offset < 0 {
		return 0, errors.New("a negative offset")
	}
	d.want = offset
	return offset, nil
}

// Close ends the open stream.
func (d *download) Close() {
	if d.cancel != nil {
		d.cancel(nil)
	}
}

// put writes a file: all of it, or nothing.
func (h *Handler) put(w http.ResponseWriter, r *http.Request, p permit) {
	if r.Header.Get("Content-Range") != "" || r.Header.Get("Content-Encoding") != "" {
		fail(w, r, &failure{status: http.StatusBadRequest, reason: "REQUEST_INVALID",
			message: "a file is written as a whole and as it is, without Content-Range and Content-Encoding"})
		return
	}
	err := upload(r, h.cfg.Sandboxes(p.principal()), p.claims)
	switch {
	case err == nil:
		private(w.Header())
		w.WriteHeader(http.StatusNoContent)
	case h.resumed(w, r, p, err):
	default:
		fail(w, r, fileFailure(err))
	}
}

// errBody is a request's body that could not be read to its end.
var errBody = errors.New("the body of the request ended early")

// upload sends a request's body. Without its trailer the file stays as it was.
func upload(r *http.Request, sandboxes sandboxv1.SandboxServiceClient, c Claims) error {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	stream, err := sandboxes.Upload(ctx)
	if err != nil {
		return err
	}
	header := &sandboxv1.UploadHeader{SandboxId: c.SandboxID, ExpectedIncarnation: c.Incarnation, Path: c.Path, Access: c.Access}
	if r.ContentLength >= 0 {
		header.Size = &r.ContentLength
	}
	send := func(m *sandboxv1.UploadRequest) error {
		err := stream.Send(m)
		if errors.Is(err, io.EOF) {
			// The call has ended, and receiving returns why.
			_, err = stream.CloseAndRecv()
			if err == nil {
				err = errBroken
			}
		}
		return err
	}
	if err := send(&sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Header{Header: header}}); err != nil {
		return err
	}
	size := int64(0)
	chunk := make([]byte, chunkBytes)
	for ended := false; !ended; {
		n, err := fill(r.Body, chunk)
		size += int64(n)
		// Any other error, io.ErrUnexpectedEOF among them, is a body without its end.
		if ended = errors.Is(err, io.EOF); err != nil && !ended {
			return fmt.Errorf("%w: %w", errBody, err)
		}
		if n == 0 {
			continue
		}
		if err := send(&sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Chunk{Chunk: chunk[:n]}}); err != nil {
			return err
		}
	}
	if err := send(&sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Trailer{Trailer: &sandboxv1.UploadTrailer{Size: &size}}}); err != nil {
		return err
	}
	resp, err := stream.CloseAndRecv()
	if err != nil {
		return err
	}
	if len(resp.GetResults()) != 1 {
		return errBroken
	}
	if e := resp.GetResults()[0].GetError(); e != nil {
		return fileError{e}
	}
	return nil
}

// fill reads until p is full, or returns the reader's own error with what came before
// it.
func fill(r io.Reader, p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var m int
		m, err = r.Read(p[n:])
		n += m
	}
	return n, err
}

// fileFailure returns the failure of a file's error.
func fileFailure(err error) *failure {
	var e fileError
	switch {
	case errors.Is(err, errBody):
		return &failure{status: http.StatusBadRequest, reason: "REQUEST_INVALID", message: errBody.Error() + "; the file is unchanged"}
	case !errors.As(err, &e):
		return failed(err)
	}
	const prefix = "ERROR_REASON_"
	f := &failure{status: http.StatusInternalServerError, reason: e.GetReason().String()[len(prefix):], message: e.GetMessage()}
	if known, ok := statuses[f.reason]; ok {
		f.status = known
	}
	return f
}
