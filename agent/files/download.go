package files

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc"

	"github.com/sandgate/sandgate/agent/fault"
	"github.com/sandgate/sandgate/agent/files/paths"
	"github.com/sandgate/sandgate/agent/threads"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

const (
	maxDownloadItems = 1000
	// readAhead is how many chunks are read and hashed while one is sent.
	readAhead = 3
)

// Download sends files one after the other: header, chunks, trailer. If a file can't
// be read, its trailer has the error, and the next file follows.
func (s *Service) Download(r *sandboxv1.DownloadRequest, stream grpc.ServerStreamingServer[sandboxv1.DownloadResponse]) error {
	defer s.begin(stream.Context())()
	items := r.GetItems()
	if len(items) == 0 || len(items) > maxDownloadItems {
		return requestFault("items", fmt.Sprintf("1 to %d are needed", maxDownloadItems))
	}
	view, _, err := s.view(stream.Context())
	if err != nil {
		return err
	}
	defer func() { _ = view.Close() }()
	for i, item := range items {
		trailer, err := s.sendFile(stream, view, int32(i), item)
		if err != nil {
			return asFault(item.GetPath(), err)
		}
		trailer.Index = int32(i)
		err = stream.Send(&sandboxv1.DownloadResponse{Payload: &sandboxv1.DownloadResponse_Trailer{Trailer: trailer}})
		if err != nil {
			return err
		}
	}
	return nil
}

// sendFile returns the trailer, or an error if the stream is broken.
func (s *Service) sendFile(stream grpc.ServerStreamingServer[sandboxv1.DownloadResponse], v *paths.View, index int32, item *sandboxv1.DownloadItem) (*sandboxv1.DownloadTrailer, error) {
	path := item.GetPath()
	var file *source
	var err error
	s.work.Do(func() { file, err = openItem(v, item) })
	if err != nil {
		return &sandboxv1.DownloadTrailer{Error: fileError(path, err)}, nil
	}
	defer func() { _ = file.Close() }()
	header := &sandboxv1.DownloadHeader{Index: index, Info: fileInfo(path, &file.stat), Offset: item.GetOffset()}
	err = stream.Send(&sandboxv1.DownloadResponse{Payload: &sandboxv1.DownloadResponse_Header{Header: header}})
	if err != nil {
		return nil, err
	}

	limit := int64(-1)
	if item.Limit != nil {
		limit = item.GetLimit()
	}
	reader := startReader(stream.Context(), s.work, file, item.GetOffset(), limit)
	defer reader.stop()
	trailer := &sandboxv1.DownloadTrailer{}
	for b := range reader.out {
		trailer.Size += int64(len(b))
		if err := stream.SendMsg(newOutgoing(b)); err != nil {
			return nil, err
		}
	}
	if err := context.Cause(stream.Context()); err != nil {
		return nil, err
	}
	// The reader has ended, because it closed its channel.
	var failed *fault.PanicError
	if errors.As(reader.err, &failed) {
		return nil, failed
	}
	trailer.Sha256, trailer.Error = reader.digest, fileError(path, reader.err)
	return trailer, nil
}

func openItem(v *paths.View, item *sandboxv1.DownloadItem) (*source, error) {
	switch {
	case item.GetOffset() < 0:
		return nil, requestFault("offset", "negative")
	case item.GetLimit() < 0:
		return nil, requestFault("limit", "negative")
	}
	return openRegular(v, item.GetPath(), paths.Read)
}

// aheadReader reads and hashes a file ahead of its sender.
type aheadReader struct {
	work   *threads.Slots
	out    chan []byte
	quit   chan struct{}
	digest []byte // this and err are valid after out is closed
	err    error
}

func startReader(ctx context.Context, work *threads.Slots, src io.ReaderAt, offset, limit int64) *aheadReader {
	p := &aheadReader{work: work, out: make(chan []byte, readAhead), quit: make(chan struct{})}
	go p.run(ctx, src, offset, limit)
	return p
}

// stop ends the reader early. It returns when the file is no longer used.
func (p *aheadReader) stop() {
	close(p.quit)
	for b := range p.out {
		putChunk(b)
	}
}

func (p *aheadReader) run(ctx context.Context, src io.ReaderAt, offset, limit int64) {
	defer close(p.out)
	if err := fault.Catch(func() error { p.read(ctx, src, offset, limit); return nil }); err != nil {
		p.err = err
	}
}

func (p *aheadReader) read(ctx context.Context, src io.ReaderAt, offset, limit int64) {
	sum := sha256.New()
	defer func() { p.digest = sum.Sum(nil) }()
	for limit != 0 && p.err == nil {
		b := getChunk()
		if limit > 0 && limit < int64(len(b)) {
			b = b[:limit]
		}
		var n int
		var err error
		p.work.Do(func() { n, err = src.ReadAt(b, offset) })
		if n == 0 {
			putChunk(b)
		} else {
			offset += int64(n)
			if limit > 0 {
				limit -= int64(n)
			}
			sum.Write(b[:n])
			select {
			case p.out <- b[:n]:
			case <-p.quit:
				return
			case <-ctx.Done():
				return
			}
		}
		if errors.Is(err, io.EOF) {
			return
		}
		p.err = err
	}
}

// chunks are the buffers for the content of files.
var chunks = sync.Pool{New: func() any { return new([streaming.LargeChunk]byte) }}

func getChunk() []byte {
	b, _ := chunks.Get().(*[streaming.LargeChunk]byte)
	return b[:]
}

// putChunk returns a buffer of getChunk, or a prefix of one, to the pool.
func putChunk(b []byte) {
	chunks.Put((*[streaming.LargeChunk]byte)(b[:streaming.LargeChunk]))
}
