package files

import (
	"context"
	"errors"
	"io"

	"github.com/sandgate/sandgate/agent/files/paths"
	"github.com/sandgate/sandgate/agent/files/text"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

const (
	defaultReadBytes = 512_000
	maxReadBytes     = 2 << 20
	// countBytes is the file size up to which lines after the window are counted.
	countBytes = 1 << 20
)

// ReadLines reads a window of a text file.
func (s *Service) ReadLines(ctx context.Context, r *sandboxv1.ReadLinesRequest) (*sandboxv1.ReadLinesResponse, error) {
	ctx, c, err := s.open(ctx, s.work)
	if err != nil {
		return nil, err
	}
	defer c.leave()
	w := text.Window{Skip: r.GetOffset(), Limit: -1, Max: int(r.GetMaxBytes())}
	if r.Limit != nil {
		w.Limit = r.GetLimit()
	}
	switch {
	case w.Skip < 0:
		return nil, requestFault("offset", "negative")
	case r.GetLimit() < 0:
		return nil, requestFault("limit", "negative")
	case r.GetMaxBytes() < 0:
		return nil, requestFault("max_bytes", "negative")
	case r.GetMaxBytes() == 0 || r.GetMaxBytes() > maxReadBytes:
		w.Max = defaultReadBytes
	}
	src, err := openRegular(c.view, r.GetPath(), paths.Read)
	if err != nil {
		return nil, asFault(r.GetPath(), err)
	}
	defer func() { _ = src.Close() }()
	resp, err := readWindow(ctx, &w, src, src.stat.Size)
	if err != nil {
		return nil, asFault(r.GetPath(), err)
	}
	return resp, nil
}

// readWindow reads src until the window is complete, and a small file to its end.
func readWindow(ctx context.Context, w *text.Window, src io.ReaderAt, size int64) (*sandboxv1.ReadLinesResponse, error) {
	buf := getChunk()
	defer putChunk(buf)
	resp := &sandboxv1.ReadLinesResponse{Size: size}
	eof := false
	for off := int64(0); !eof; {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		n, err := src.ReadAt(buf, off)
		eof = errors.Is(err, io.EOF)
		if err != nil && !eof {
			return nil, err
		}
		if off == 0 && !text.IsText(buf[:n], !eof) {
			return resp, nil
		}
		w.Add(buf[:n])
		off += int64(n)
		if w.Decided() && (size > countBytes || off > countBytes) {
			break
		}
	}
	if eof {
		w.End()
		resp.TotalLines = &w.Lines
	}
	resp.Text, resp.Content = true, w.Content
	resp.StartLine, resp.EndLine = w.First, w.Last
	resp.More, resp.Truncated = w.More(), w.Truncated
	return resp, nil
}
