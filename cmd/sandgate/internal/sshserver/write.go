package sshserver

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path"
	"sync"

	"github.com/pkg/sftp"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// Bounds of the writes of a file that wait for those before them. Clients send many at
// once, which arrive nearly in order.
const (
	maxEarly       = 4 << 20 // bytes
	maxEarlyWrites = 1024
)

// writer is a file that is open for writing. Its content goes into one upload, from the
// first byte to the last, which replaces the file when the client closes it. Bytes of the
// former file that the client did not write are copied.
type writer struct {
	files *files
	path  string
	old   *sandgate.FileInfo // the file to keep bytes of; nil: none
	mode  *uint32
	excl  bool

	mu     sync.Mutex
	pipe   *io.PipeWriter // nil: the upload has not begun
	result chan error
	next   int64 // how many bytes the upload has
	early  map[int64][]byte
	size   int64 // of early
	broken error // why the upload failed, which the user has read; or errClosed
	after  sftp.FileStat
	attrs  sftp.FileAttrFlags // those of after that are set when the file is closed
}

var (
	errBackwards = unsupported("a file can only be written from its beginning to its end")
	errHole      = unsupported("a file with a hole cannot be written")
	errTruncate  = unsupported("a file cannot be cut or extended to a size while it is written; write a new one")
	errWritten   = errors.New("the file is being written already in this session")
	errAborted   = errors.New("the connection ended before the file was closed")
)

// create opens a file for writing.
func (f *files) create(r *sftp.Request) (*writer, error) {
	flags := r.Pflags()
	info, err := f.stat(r.Filepath)
	switch {
	case errors.Is(err, sandgate.ErrFileNotFound):
		if !flags.Creat {
			return nil, err
		}
		// An upload would make the directory, and hide a mistyped name.
		if err := f.directory(path.Dir(r.Filepath)); err != nil {
			return nil, err
		}
		info = nil
	case err != nil:
		return nil, err
	case flags.Creat && flags.Excl:
		return nil, &sandgate.Error{Reason: sandgate.ErrFileAlreadyExists, Message: r.Filepath + " exists"}
	case info.GetType() != sandgate.Regular:
		return nil, fmt.Errorf("%s is not a regular file", r.Filepath)
	}
	w := &writer{files: f, path: r.Filepath, excl: flags.Excl, early: map[int64][]byte{}}
	if !flags.Trunc {
		w.old = info
	}
	// Opening a file that exists changes no permissions. Of a new one's attributes, pkg/sftp
	// keeps the bytes and not what they are; OpenSSH sends the permissions alone, unless it
	// sets everything before it closes the file. The mask is the umask of most systems.
	if info == nil && len(r.Attrs) == 4 {
		mode := binary.BigEndian.Uint32(r.Attrs) & 0o777 &^ 0o022
		w.mode = &mode
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.writers[w.path] != nil {
		return nil, errWritten
	}
	f.writers[w.path] = w
	return w, nil
}

// WriteAt implements io.WriterAt.
func (w *writer) WriteAt(p []byte, offset int64) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken != nil {
		return 0, w.broken
	}
	if err := w.write(p, offset); err != nil {
		w.broken = w.files.reply(err)
		return 0, w.broken
	}
	return len(p), nil
}

func (w *writer) write(p []byte, offset int64) error {
	if offset < w.next {
		return errBackwards
	}
	if offset > w.next {
		if _, twice := w.early[offset]; twice {
			return errBackwards
		}
		w.early[offset] = append([]byte(nil), p...)
		if w.size += int64(len(p)); w.size <= maxEarly && len(w.early) <= maxEarlyWrites {
			return nil
		}
		// What is missing does not come any more.
		return w.drain(true)
	}
	if err := w.send(p); err != nil {
		return err
	}
	return w.drain(false)
}

// drain sends what waits for its turn. With gaps, bytes in between are those of the former
// file.
func (w *writer) drain(gaps bool) error {
	for len(w.early) > 0 {
		p, ok := w.early[w.next]
		if !ok {
			first := int64(-1)
			for offset := range w.early {
				if first < 0 || offset < first {
					first = offset
				}
			}
			switch {
			case first < w.next:
				return errBackwards
			case !gaps:
				return nil
			case first > w.old.GetSize():
				return errHole
			}
			if err := w.keep(first); err != nil {
				return err
			}
			continue
		}
		delete(w.early, w.next)
		w.size -= int64(len(p))
		if err := w.send(p); err != nil {
			return err
		}
	}
	return nil
}

// keep copies the former file up to an offset.
func (w *writer) keep(to int64) error {
	before := w.next
	info, err := w.files.sandbox.DownloadFile(w.files.ctx, w.path, sender{w}, nil,
		sandgate.DownloadOffset(before), sandgate.DownloadLimit(to-before))
	if err != nil {
		return err
	}
	if w.next != to || info.GetSize() != w.old.GetSize() || !info.GetModifyTime().AsTime().Equal(w.old.GetModifyTime().AsTime()) {
		return errors.New(w.path + " changed while it was written")
	}
	return nil
}

// sender appends to the upload.
type sender struct{ w *writer }

func (s sender) Write(p []byte) (int, error) { return len(p), s.w.send(p) }

// send appends to the upload.
func (w *writer) send(p []byte) error {
	w.begin()
	n, err := w.pipe.Write(p)
	w.next += int64(n)
	return err
}

// begin starts the upload.
func (w *writer) begin() {
	if w.pipe != nil {
		return
	}
	content, pipe := io.Pipe()
	w.pipe, w.result = pipe, make(chan error, 1)
	go func() {
		_, err := w.files.sandbox.UploadFile(w.files.ctx, sandgate.File{Path: w.path, Content: content, Mode: w.mode, CreateOnly: w.excl})
		_ = content.CloseWithError(cmp.Or(err, io.ErrClosedPipe))
		w.result <- err
	}()
}

// TransferError aborts the upload: the client went away before it closed the file.
func (w *writer) TransferError(error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = cmp.Or(w.broken, errAborted)
}

// Close ends the upload, and the file is replaced. If anything failed, it stays what it
// was.
func (w *writer) Close() error {
	defer release(w.files.slots)
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.broken
	err := w.finish()
	w.broken = errClosed
	w.files.mu.Lock()
	delete(w.files.writers, w.path)
	w.files.mu.Unlock()
	if err == nil && (w.attrs.Permissions || w.attrs.Acmodtime) {
		err = w.files.setAttributes(w.path, w.attrs, w.after)
	}
	if known != nil {
		return known
	}
	return w.files.reply(err)
}

func (w *writer) finish() error {
	err := w.broken
	if err == nil {
		err = w.drain(true)
	}
	if err == nil && w.next < w.old.GetSize() {
		err = w.keep(w.old.GetSize())
	}
	if err != nil {
		if w.pipe != nil {
			_ = w.pipe.CloseWithError(err)
			<-w.result //nolint:errcheck // It is err, which the pipe gave it.
		}
		return err
	}
	w.begin()
	_ = w.pipe.Close()
	return <-w.result
}

// set remembers attributes until the file is closed.
func (w *writer) set(flags sftp.FileAttrFlags, to sftp.FileStat) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if flags.Size {
		if err := w.drain(false); err != nil {
			return err
		}
		if len(w.early) > 0 || int64(to.Size) != w.next {
			return errTruncate
		}
		w.old = nil
	}
	if flags.Permissions {
		w.attrs.Permissions, w.after.Mode = true, to.Mode
	}
	if flags.Acmodtime {
		w.attrs.Acmodtime, w.after.Mtime = true, to.Mtime
	}
	return nil
}

// written returns how much of the file was written.
func (w *writer) written() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.next + w.size
}
