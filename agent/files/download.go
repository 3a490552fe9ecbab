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
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

const (
	maxDownloadItems = 1000
	// readAhead is how many chunks are read and hashed while one is sent.
	readAhead = 3
)

// Download sends files one after the other: header, chunks, trailer. A file
// that cannot be read has a trailer with the error, and the next one follows.
func (s *Service) Download(req *agentv1.DownloadRequest, stream grpc.ServerStreamingServer[agentv1.DownloadResponse]) error {
	defer s.begin()()
	items := req.GetRequest().GetItems()
	if len(items) == 0 || len(items) > maxDownloadItems {
		return requestFault("items", fmt.Sprintf("1 to %d are needed", maxDownloadItems))
	}
	view, err := s.view(req.GetConfinement())
	if err != nil {
		return err
	}
	defer func() { _ = view.Close() }()
	for i, item := range items {
		trailer, err := sendFile(stream, view, int32(i), item)
		if err != nil {
			return asFault(item.GetPath(), err)
		}
		trailer.Index = int32(i)
		err = stream.Send(&agentv1.DownloadResponse{Payload: &agentv1.DownloadResponse_Trailer{Trailer: trailer}})
		if err != nil {
			return err
		}
	}
	return nil
}

// sendFile returns the trailer, or an error when the stream is broken.
func sendFile(stream grpc.ServerStreamingServer[agentv1.DownloadResponse], v *paths.View, index int32, item *sandboxv1.DownloadItem) (*sandboxv1.DownloadTrailer, error) {
	path := item.GetPath()
	file, err := openItem(v, item)
	if err != nil {
		return &sandboxv1.DownloadTrailer{Error: fileError(path, err)}, nil
	}
	defer func() { _ = file.Close() }()
	header := &sandboxv1.DownloadHeader{Index: index, Info: fileInfo(path, &file.stat), Offset: item.GetOffset()}
	err = stream.Send(&agentv1.DownloadResponse{Payload: &agentv1.DownloadResponse_Header{Header: header}})
	if err != nil {
		return nil, err
	}

	limit := int64(-1)
	if item.Limit != nil {
		limit = item.GetLimit()
	}
	pump := startPump(stream.Context(), file, item.GetOffset(), limit)
	defer pump.stop()
	trailer := &sandboxv1.DownloadTrailer{}
	for b := range pump.out {
		trailer.Size += int64(len(b))
		if err := stream.SendMsg(newOutgoing(b)); err != nil {
			return nil, err
		}
	}
	if err := context.Cause(stream.Context()); err != nil {
		return nil, err
	}
	// The pump has ended with its channel.
	var failed *fault.PanicError
	if errors.As(pump.err, &failed) {
		return nil, failed
	}
	trailer.Sha256, trailer.Error = pump.digest, fileError(path, pump.err)
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

// pump reads and hashes a file ahead of its sender.
type pump struct {
	out    chan []byte
	quit   chan struct{}
	digest []byte // valid after out was closed, as is err
	err    error
}

func startPump(ctx context.Context, src io.ReaderAt, offset, limit int64) *pump {
	p := &pump{out: make(chan []byte, readAhead), quit: make(chan struct{})}
	go p.run(ctx, src, offset, limit)
	return p
}

// stop ends the pump early. It returns when the file is no longer used.
func (p *pump) stop() {
	close(p.quit)
	for b := range p.out {
		putChunk(b)
	}
}

func (p *pump) run(ctx context.Context, src io.ReaderAt, offset, limit int64) {
	defer close(p.out)
	if err := fault.Catch(func() error { p.read(ctx, src, offset, limit); return nil }); err != nil {
		p.err = err
	}
}

func (p *pump) read(ctx context.Context, src io.ReaderAt, offset, limit int64) {
	sum := sha256.New()
	defer func() { p.digest = sum.Sum(nil) }()
	for limit != 0 && p.err == nil {
		b := getChunk()
		if limit > 0 && limit < int64(len(b)) {
			b = b[:limit]
		}
		n, err := src.ReadAt(b, offset)
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

// chunks are the buffers that files are read into.
var chunks = sync.Pool{New: func() any { return new([streaming.LargeChunk]byte) }}

func getChunk() []byte {
	b, _ := chunks.Get().(*[streaming.LargeChunk]byte)
	return b[:]
}

// putChunk takes back a buffer of getChunk, or a part from its beginning.
func putChunk(b []byte) {
	chunks.Put((*[streaming.LargeChunk]byte)(b[:streaming.LargeChunk]))
}
