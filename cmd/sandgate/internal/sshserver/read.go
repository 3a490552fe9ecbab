package sshserver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// Clients read a file with many requests at once, which arrive nearly in order. One
// download serves them, from a window that reaches from behind the foremost request to
// ahead of it. Requests elsewhere have a call of their own.
const (
	readBehind = 512 << 10
	readAhead  = 1 << 20
)

// reader is a file that is open for reading.
type reader struct {
	files  *files
	path   string
	info   *sandgate.FileInfo // when it was opened
	ctx    context.Context    //nolint:containedctx // As of the session.
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when the download has ended; nil: it has not begun

	mu      sync.Mutex
	changed sync.Cond
	window  []byte
	start   int64 // offset of window
	want    int64 // up to here was requested
	ended   bool
	err     error // why the download ended before the file did
}

var errClosed = errors.New("the file was closed")

// open returns the file at a path; links are followed.
func (f *files) open(path string) (*reader, error) {
	info, err := f.sandbox.DownloadFile(f.reads, path, io.Discard, nil, sandgate.DownloadLimit(0))
	if err != nil {
		return nil, err
	}
	r := &reader{files: f, path: path, info: info}
	r.changed.L = &r.mu
	r.ctx, r.cancel = context.WithCancelCause(f.reads)
	return r, nil
}

// ReadAt implements io.ReaderAt. It returns fewer bytes only at the end of the file.
func (r *reader) ReadAt(p []byte, offset int64) (int, error) {
	n, err := r.readAt(p, offset)
	if err != nil && err != io.EOF { //nolint:errorlint // ReadAt returns it bare.
		err = r.files.reply(err)
	}
	return n, err
}

func (r *reader) readAt(p []byte, offset int64) (int, error) {
	if offset < 0 {
		return 0, errors.New("the offset is negative")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done == nil {
		r.begin(max(offset-readBehind, 0))
	}
	for {
		end := r.start + int64(len(r.window))
		switch {
		case offset < r.start || offset > end+readAhead:
			r.mu.Unlock()
			defer r.mu.Lock()
			return r.apart(p, offset)
		case offset+int64(len(p)) <= end, r.ended && offset < end:
			return copy(p, r.window[offset-r.start:]), nil
		case r.ended && r.err != nil:
			return 0, r.err
		case r.ended:
			return 0, io.EOF
		}
		if to := offset + int64(len(p)); to > r.want {
			r.want = to
			r.changed.Broadcast()
		}
		r.changed.Wait()
	}
}

// begin starts the download.
func (r *reader) begin(offset int64) {
	r.start, r.want, r.done = offset, offset, make(chan struct{})
	go func() {
		defer close(r.done)
		defer context.AfterFunc(r.ctx, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.changed.Broadcast()
		})()
		_, err := r.files.sandbox.DownloadFile(r.ctx, r.path, r, nil, sandgate.DownloadOffset(offset))
		r.mu.Lock()
		defer r.mu.Unlock()
		r.ended, r.err = true, err
		r.changed.Broadcast()
	}()
}

// Write takes the next bytes of the download.
func (r *reader) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.start+int64(len(r.window)) >= r.want+readAhead {
		if r.ctx.Err() != nil {
			return 0, errClosed
		}
		r.changed.Wait()
	}
	if old := min(r.want-readBehind-r.start, int64(len(r.window))); old > 0 {
		r.window = append(r.window[:0], r.window[old:]...)
		r.start += old
	}
	r.window = append(r.window, p...)
	r.changed.Broadcast()
	return len(p), nil
}

// apart reads with a call of its own.
func (r *reader) apart(p []byte, offset int64) (int, error) {
	var content bytes.Buffer
	info, err := r.files.sandbox.DownloadFile(r.ctx, r.path, &content, nil,
		sandgate.DownloadOffset(offset), sandgate.DownloadLimit(int64(len(p))))
	switch {
	case err != nil:
		return 0, err
	case info.GetSize() != r.info.GetSize() || !info.GetModifyTime().AsTime().Equal(r.info.GetModifyTime().AsTime()):
		return 0, errors.New(r.path + " changed while it was read")
	case content.Len() == 0:
		return 0, io.EOF
	}
	return copy(p, content.Bytes()), nil
}

// Close ends the download.
func (r *reader) Close() error {
	r.cancel(errClosed)
	r.mu.Lock()
	done := r.done
	r.mu.Unlock()
	if done != nil {
		<-done
	}
	release(r.files.slots)
	return nil
}
