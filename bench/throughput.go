package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/sandgate/sandgate/bench/report"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// rounds is how often each throughput is measured; Sandgate and the yardsticks take
// turns within a round.
const rounds = 5

// stdoutThroughput compares the output of one command, end to end, with a
// one-hop grpc-go stream that reads the same command's pipe.
func stdoutThroughput(ctx context.Context, b *bench) ([]report.Figure, error) {
	remove, err := b.sandbox(ctx, "bench-stdout")
	if err != nil {
		return nil, err
	}
	defer remove()
	size := b.size(1 << 30)
	argv := []string{"head", "-c", fmt.Sprint(size), "/dev/zero"}
	return compare(ctx, b, "stdout | one hop, same pipe", size, report.AtLeast(0.6), report.AtLeast(0.8), func(c sandboxv1.SandboxServiceClient) error {
		return drainExecute(ctx, c, "bench-stdout", argv, size)
	})
}

// compare times one job with the server and with each yardstick.
func compare(ctx context.Context, b *bench, what string, size int64, must, goal report.Bound, job func(sandboxv1.SandboxServiceClient) error) ([]report.Figure, error) {
	clients, stop, err := yardsticks(ctx, b.dir)
	if err != nil {
		return nil, err
	}
	defer stop()
	clients = append(clients, b.client)
	times := make([]report.Samples, len(clients))
	for range b.count(rounds) {
		for i, c := range clients {
			start := time.Now()
			if err := job(c); err != nil {
				return nil, err
			}
			times[i] = append(times[i], time.Since(start))
		}
	}
	ours, hops := times[len(times)-1], times[:len(times)-1]
	best := slices.MinFunc(hops, func(a, b report.Samples) int { return int(a.Median() - b.Median()) })
	return []report.Figure{report.Throughput(what, size, ours, best, must, goal)}, nil
}

func drainExecute(ctx context.Context, c sandboxv1.SandboxServiceClient, sandbox string, argv []string, want int64) error {
	call, err := c.Execute(ctx, &sandboxv1.ExecuteRequest{
		SandboxId: sandbox,
		Command:   &sandboxv1.ExecuteRequest_Argv{Argv: &sandboxv1.Argv{Args: argv}},
	})
	if err != nil {
		return err
	}
	var got int64
	for {
		m, err := call.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		got += int64(len(m.GetOutput().GetData()))
	}
	if got != want {
		return fmt.Errorf("%d bytes of output, want %d", got, want)
	}
	return nil
}

const transferPath = "/workspace/bench.bin"

// uploadThroughput compares the upload of one hashed file with a one-hop stream
// that writes and hashes the same bytes.
func uploadThroughput(ctx context.Context, b *bench) ([]report.Figure, error) {
	size := b.size(1 << 30)
	remove, err := b.sandboxWith(ctx, "bench-upload", transferSpec(size))
	if err != nil {
		return nil, err
	}
	defer remove()
	content := make([]byte, 256<<10)
	for i := range content {
		content[i] = byte(i * 7)
	}
	return compare(ctx, b, "upload, hashed | one hop", size, report.AtLeast(0.8), report.AtLeast(1), func(c sandboxv1.SandboxServiceClient) error {
		_, err := upload(ctx, c, "bench-upload", content, size)
		return err
	})
}

func transferSpec(size int64) *sandboxv1.SandboxSpec {
	return &sandboxv1.SandboxSpec{Resources: &sandboxv1.Resources{DiskBytes: 3*size + 256<<20}}
}

func upload(ctx context.Context, c sandboxv1.SandboxServiceClient, sandbox string, content []byte, size int64) ([]byte, error) {
	call, err := c.Upload(ctx)
	if err != nil {
		return nil, err
	}
	send := func(m *sandboxv1.UploadRequest) error {
		if err := call.Send(m); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		return nil
	}
	if err := send(&sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Header{
		Header: &sandboxv1.UploadHeader{SandboxId: sandbox, Path: transferPath},
	}}); err != nil {
		return nil, err
	}
	for left := size; left > 0; {
		n := min(left, int64(len(content)))
		if err := send(&sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Chunk{Chunk: content[:n]}}); err != nil {
			return nil, err
		}
		left -= n
	}
	if err := send(&sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Trailer{Trailer: &sandboxv1.UploadTrailer{}}}); err != nil {
		return nil, err
	}
	response, err := call.CloseAndRecv()
	if err != nil {
		return nil, err
	}
	r := response.GetResults()[0]
	if r.GetError() != nil || r.GetSize() != size {
		return nil, fmt.Errorf("upload ended with %v", r)
	}
	return r.GetSha256(), nil
}

// downloadThroughput compares the download of one hashed file with a one-hop
// stream that reads and hashes the same file.
func downloadThroughput(ctx context.Context, b *bench) ([]report.Figure, error) {
	size := b.size(1 << 30)
	remove, err := b.sandboxWith(ctx, "bench-download", transferSpec(size))
	if err != nil {
		return nil, err
	}
	defer remove()
	content := bytes.Repeat([]byte("sandgate"), 32<<10)
	want, err := upload(ctx, b.client, "bench-download", content, size)
	if err != nil {
		return nil, err
	}
	clients, stop, err := yardsticks(ctx, b.dir)
	if err != nil {
		return nil, err
	}
	_, err = upload(ctx, clients[0], "", content, size)
	stop()
	if err != nil {
		return nil, err
	}
	defer os.Remove(b.dir + "/bench.bin")
	return compare(ctx, b, "download, hashed | one hop", size, report.AtLeast(0.65), report.AtLeast(0.8), func(c sandboxv1.SandboxServiceClient) error {
		return drainDownload(ctx, c, "bench-download", want)
	})
}

// drainDownload receives the file and compares the server's hash with the upload's. The client does not hash: neither does the yardstick's.
func drainDownload(ctx context.Context, c sandboxv1.SandboxServiceClient, sandbox string, want []byte) error {
	call, err := c.Download(ctx, &sandboxv1.DownloadRequest{
		SandboxId: sandbox, Items: []*sandboxv1.DownloadItem{{Path: transferPath}},
	})
	if err != nil {
		return err
	}
	var sum []byte
	for {
		m, err := call.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if t := m.GetTrailer(); t != nil {
			sum = t.GetSha256()
		}
	}
	if len(want) != sha256.Size || !bytes.Equal(sum, want) {
		return fmt.Errorf("downloaded hash %x, uploaded %x", sum, want)
	}
	return nil
}
