package files_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/sandgate/sandgate/agent/files"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

const benchSize = 256 << 20

func BenchmarkUpload(b *testing.B) {
	_, c := start(b, files.Config{})
	path := b.TempDir() + "/f"
	piece := chunk(make([]byte, 256<<10))
	b.SetBytes(benchSize)
	for b.Loop() {
		stream, err := c.Upload(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		_ = stream.Send(header(&sandboxv1.UploadHeader{Path: path}))
		for range benchSize >> 18 {
			if err := stream.Send(piece); err != nil {
				b.Fatal(err)
			}
		}
		_ = stream.Send(trailer(nil))
		if _, err := stream.CloseAndRecv(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkUploadAlone is BenchmarkUpload without gRPC: hash and write.
func BenchmarkUploadAlone(b *testing.B) {
	svc := files.New(files.Config{})
	defer svc.Close()
	msgs := []*sandboxv1.UploadRequest{header(&sandboxv1.UploadHeader{Path: b.TempDir() + "/f"})}
	piece := chunk(make([]byte, 256<<10))
	for range benchSize >> 18 {
		msgs = append(msgs, piece)
	}
	msgs = append(msgs, trailer(nil))
	b.SetBytes(benchSize)
	for b.Loop() {
		if err := svc.Upload(&script{ctx: called(b.Context(), nil), msgs: msgs, end: io.EOF}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDownload(b *testing.B) {
	_, c := start(b, files.Config{})
	path := b.TempDir() + "/f"
	if err := os.WriteFile(path, make([]byte, benchSize), 0o600); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(benchSize)
	for b.Loop() {
		down, err := c.Download(b.Context(), &sandboxv1.DownloadRequest{
			Items: []*sandboxv1.DownloadItem{{Path: path}},
		})
		if err != nil {
			b.Fatal(err)
		}
		for {
			if _, err := down.Recv(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkSmallUploads writes a thousand files in one stream.
func BenchmarkSmallUploads(b *testing.B) {
	_, c := start(b, files.Config{})
	dir := b.TempDir()
	for b.Loop() {
		stream, err := c.Upload(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		for i := range 1000 {
			_ = stream.Send(header(&sandboxv1.UploadHeader{Path: fmt.Sprintf("%s/%d", dir, i)}))
			_ = stream.Send(chunk([]byte("content")))
			_ = stream.Send(trailer(nil))
		}
		if _, err := stream.CloseAndRecv(); err != nil {
			b.Fatal(err)
		}
	}
}

// The parts of the two above, alone.
func BenchmarkYardstickSHA256(b *testing.B) {
	buf := make([]byte, 256<<10)
	b.SetBytes(int64(len(buf)))
	h := sha256.New()
	for b.Loop() {
		h.Write(buf)
	}
}

func BenchmarkYardstickWrite(b *testing.B) {
	path := b.TempDir() + "/f"
	buf := make([]byte, 256<<10)
	b.SetBytes(benchSize)
	for b.Loop() {
		f, err := os.Create(path)
		if err != nil {
			b.Fatal(err)
		}
		for range benchSize >> 18 {
			if _, err := f.Write(buf); err != nil {
				b.Fatal(err)
			}
		}
		if err := f.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
