//go:build linux

package realagent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"log/slog"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/test/testserver"
)

// real serves sandboxes with real agents on a unix socket.
func real(t testing.TB, wrap ...func(providers.Provider) providers.Provider) sandboxv1.SandboxServiceClient {
	t.Helper()
	machine, dir := testserver.Machine(t)
	var provider providers.Provider = machine.Open()
	for _, w := range wrap {
		provider = w(provider)
	}
	address, _ := testserver.Serve(t, dir, server.Config{Provider: provider, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(1<<20), grpc.WithStaticConnWindowSize(16<<20))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	client := sandboxv1.NewSandboxServiceClient(conn)
	if _, err := client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "a"}); err != nil {
		t.Fatal(err)
	}
	return client
}

// run executes a shell command and returns what it wrote and how it ended.
func run(ctx context.Context, client sandboxv1.SandboxServiceClient, shell string) (int64, *sandboxv1.Exited, error) {
	stream, err := client.Execute(ctx, &sandboxv1.ExecuteRequest{SandboxId: "a", Command: &sandboxv1.ExecuteRequest_Shell{Shell: shell}})
	if err != nil {
		return 0, nil, err
	}
	var n int64
	var exited *sandboxv1.Exited
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return n, exited, nil
		}
		if err != nil {
			return n, exited, err
		}
		n += int64(len(m.GetOutput().GetData()))
		if m.GetExited() != nil {
			exited = m.GetExited()
		}
	}
}

func TestExecuteOnARealAgent(t *testing.T) {
	client := real(t)
	n, exited, err := run(t.Context(), client, "echo out; echo err >&2; exit 3")
	if err != nil || n != 8 || exited.GetExitCode() != 3 || exited.GetStdoutBytes() != 4 {
		t.Fatalf("%d bytes, %v, %v", n, exited, err)
	}
	n, exited, err = run(t.Context(), client, "head -c 50000000 /dev/zero")
	if err != nil || n != 50_000_000 || exited.GetExitCode() != 0 {
		t.Fatalf("%d bytes, %v, %v", n, exited, err)
	}
}

func TestFilesOnARealAgent(t *testing.T) {
	client := real(t)
	path := filepath.Join(t.TempDir(), "deep", "file")
	content := bytes.Repeat([]byte("0123456789"), 1_000_000)
	up, err := client.Upload(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = up.Send(&sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Header{
		Header: &sandboxv1.UploadHeader{SandboxId: "a", Path: path}}})
	for rest := content; len(rest) > 0 && err == nil; {
		n := min(256<<10, len(rest))
		err = up.Send(&sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Chunk{Chunk: rest[:n]}})
		rest = rest[n:]
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := up.Send(&sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Trailer{Trailer: &sandboxv1.UploadTrailer{}}}); err != nil {
		t.Fatal(err)
	}
	resp, err := up.CloseAndRecv()
	if err != nil {
		t.Fatal(err)
	}
	want := sha256.Sum256(content)
	if r := resp.GetResults()[0]; r.GetError() != nil || !bytes.Equal(r.GetSha256(), want[:]) {
		t.Fatalf("got %v", r)
	}
	down, err := client.Download(t.Context(), &sandboxv1.DownloadRequest{SandboxId: "a",
		Items: []*sandboxv1.DownloadItem{{Path: path}, {Path: path + ".none"}}})
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	var trailers []*sandboxv1.DownloadTrailer
	for {
		m, err := down.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, m.GetChunk()...)
		if m.GetTrailer() != nil {
			trailers = append(trailers, m.GetTrailer())
		}
	}
	if !bytes.Equal(got, content) || len(trailers) != 2 ||
		trailers[1].GetError().GetReason() != sandboxv1.ErrorReason_ERROR_REASON_FILE_NOT_FOUND {
		t.Fatalf("%d bytes, %v", len(got), trailers)
	}
	lines, err := client.ReadLines(t.Context(), &sandboxv1.ReadLinesRequest{SandboxId: "a", Path: "/etc/hostname"})
	if err != nil || !strings.HasPrefix(string(lines.GetContent()), strings.TrimSpace(string(lines.GetContent()))) {
		t.Fatalf("%v %v", lines, err)
	}
}

func BenchmarkExecuteTrue(b *testing.B) {
	client := real(b)
	for b.Loop() {
		if _, exited, err := run(b.Context(), client, "true"); err != nil || exited.GetExitCode() != 0 {
			b.Fatal(exited, err)
		}
	}
}

func BenchmarkHostTrue(b *testing.B) {
	for b.Loop() {
		if err := exec.CommandContext(b.Context(), "/bin/sh", "-c", "true").Run(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkStdout(b *testing.B) {
	client := real(b)
	const size = 256 << 20
	b.SetBytes(size)
	for b.Loop() {
		if n, _, err := run(b.Context(), client, "head -c 268435456 /dev/zero"); err != nil || n != size {
			b.Fatal(n, err)
		}
	}
}

// BenchmarkStdoutOneHop is the yardstick: a plain gRPC stream that reads the
// same pipe, with generated messages and 256 KiB chunks.
func BenchmarkStdoutOneHop(b *testing.B) {
	const size = 256 << 20
	path := filepath.Join(b.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	srv := grpc.NewServer()
	sandboxv1.RegisterSandboxServiceServer(srv, oneHop{})
	go func() { _ = srv.Serve(l) }()
	defer srv.Stop()
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	client := sandboxv1.NewSandboxServiceClient(conn)
	b.SetBytes(size)
	for b.Loop() {
		if n, _, err := run(b.Context(), client, "head -c 268435456 /dev/zero"); err != nil || n != size {
			b.Fatal(n, err)
		}
	}
}

type oneHop struct {
	sandboxv1.UnimplementedSandboxServiceServer
}

func (oneHop) Execute(req *sandboxv1.ExecuteRequest, out grpc.ServerStreamingServer[sandboxv1.ExecuteResponse]) error {
	cmd := exec.CommandContext(out.Context(), "/bin/sh", "-c", req.GetShell())
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	buf := make([]byte, 256<<10)
	var position int64
	for {
		n, err := io.ReadFull(pipe, buf)
		if n > 0 {
			sent := out.Send(&sandboxv1.ExecuteResponse{Event: &sandboxv1.ExecuteResponse_Output{Output: &sandboxv1.Output{
				Stream: sandboxv1.Stream_STREAM_STDOUT, Position: position, Data: buf[:n]}}})
			if sent != nil {
				return sent
			}
			position += int64(n)
		}
		if err != nil {
			return cmd.Wait()
		}
	}
}
