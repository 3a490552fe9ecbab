package conformance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

type file struct {
	path string
	data []byte
}

func (s Sandbox) upload(ctx context.Context, t T, files ...file) []*sandboxv1.UploadResult {
	t.Helper()
	stream, err := s.Client.Upload(ctx)
	if err != nil {
		t.Fatalf("%v", err)
	}
	send := func(m *sandboxv1.UploadRequest) {
		// The reason comes with the answer.
		if err := stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
			t.Fatalf("upload: %v", err)
		}
	}
	for _, f := range files {
		for _, m := range f.messages(s.ID) {
			send(m)
		}
	}
	resp, err := stream.CloseAndRecv()
	if err != nil {
		t.Fatalf("upload: %v", err)
	}
	if len(resp.GetResults()) != len(files) {
		t.Fatalf("%d results for %d files: %v", len(resp.GetResults()), len(files), resp)
	}
	return resp.GetResults()
}

// messages returns what uploads the file.
func (f file) messages(sandbox string) []*sandboxv1.UploadRequest {
	all := []*sandboxv1.UploadRequest{
		{Payload: &sandboxv1.UploadRequest_Header{Header: &sandboxv1.UploadHeader{SandboxId: sandbox, Path: f.path}}},
	}
	for chunk := range slices.Chunk(f.data, 256<<10) {
		all = append(all, &sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Chunk{Chunk: chunk}})
	}
	return append(all, &sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Trailer{Trailer: &sandboxv1.UploadTrailer{}}})
}

// put uploads one file. Unlike upload it may run beside the test.
func (s Sandbox) put(ctx context.Context, f file) error {
	stream, err := s.Client.Upload(ctx)
	if err != nil {
		return err
	}
	for _, m := range f.messages(s.ID) {
		// The reason comes with the answer.
		if err := stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	resp, err := stream.CloseAndRecv()
	if err == nil && resp.GetResults()[0].GetError() != nil {
		return fmt.Errorf("%v", resp.GetResults()[0].GetError())
	}
	return err
}

type downloaded struct {
	data    []byte
	trailer *sandboxv1.DownloadTrailer
}

func (s Sandbox) download(ctx context.Context, t T, paths ...string) []downloaded {
	t.Helper()
	req := &sandboxv1.DownloadRequest{SandboxId: s.ID}
	for _, p := range paths {
		req.Items = append(req.Items, &sandboxv1.DownloadItem{Path: p})
	}
	stream, err := s.Client.Download(ctx, req)
	if err != nil {
		t.Fatalf("%v", err)
	}
	out := make([]downloaded, len(paths))
	at := 0
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("download: %v", err)
		}
		if at == len(out) {
			t.Fatalf("%v came after the last file", m)
		}
		switch e := m.GetPayload().(type) {
		case *sandboxv1.DownloadResponse_Header:
			if int(e.Header.GetIndex()) != at {
				t.Errorf("header of item %d where %d was due", e.Header.GetIndex(), at)
			}
		case *sandboxv1.DownloadResponse_Chunk:
			out[at].data = append(out[at].data, e.Chunk...)
		case *sandboxv1.DownloadResponse_Trailer:
			out[at].trailer = e.Trailer
			at++
		}
	}
	if at != len(out) {
		t.Fatalf("%d of %d files came", at, len(out))
	}
	return out
}

// noise is not compressible and the same in every run.
func noise(size int) []byte {
	out := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(out)
	return out
}

func uploadDownload(ctx context.Context, t T, s Sandbox) {
	data := noise(1 << 20)
	sum := sha256.Sum256(data)
	files := []file{{s.dir + "/noise", data}, {s.dir + "/empty", nil}, {s.dir + "/small", []byte("x\x00\n")}}
	for i, r := range s.upload(ctx, t, files...) {
		if r.GetError() != nil || r.GetPath() != files[i].path || r.GetSize() != int64(len(files[i].data)) {
			t.Errorf("upload of %s: %v", files[i].path, r)
		}
	}
	if r := s.sh(ctx, t, "wc -c <noise"); r.stdout != "1048576\n" {
		t.Errorf("a command sees %v", r)
	}
	got := s.download(ctx, t, files[0].path, files[1].path, files[2].path)
	for i, g := range got {
		if !bytes.Equal(g.data, files[i].data) || g.trailer.GetError() != nil {
			t.Errorf("download of %s: %d bytes, %v", files[i].path, len(g.data), g.trailer)
		}
	}
	if !bytes.Equal(got[0].trailer.GetSha256(), sum[:]) {
		t.Errorf("sha256 %x, want %x", got[0].trailer.GetSha256(), sum)
	}
}

func uploadMakesParents(ctx context.Context, t T, s Sandbox) {
	path := s.dir + "/new/deep/er/file"
	if r := s.upload(ctx, t, file{path, []byte("text")})[0]; r.GetError() != nil {
		t.Fatalf("upload: %v", r)
	}
	if r := s.sh(ctx, t, "cat "+path); r.stdout != "text" {
		t.Errorf("a command sees %v", r)
	}
}

// uploadEndedWithinAFile closes its side politely where a file goes on, as some
// HTTP/2 stacks do for a stream that is cancelled.
func uploadEndedWithinAFile(ctx context.Context, t T, s Sandbox) {
	path := s.dir + "/kept"
	if r := s.upload(ctx, t, file{path, []byte("old")})[0]; r.GetError() != nil {
		t.Fatalf("upload: %v", r)
	}
	header := &sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Header{Header: &sandboxv1.UploadHeader{SandboxId: s.ID, Path: path}}}
	chunk := &sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Chunk{Chunk: []byte("half")}}
	for _, messages := range [][]*sandboxv1.UploadRequest{{header}, {header, chunk}} {
		stream, err := s.Client.Upload(ctx)
		if err != nil {
			t.Fatalf("%v", err)
		}
		for _, m := range messages {
			if err := stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
				t.Fatalf("upload: %v", err)
			}
		}
		if resp, err := stream.CloseAndRecv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%d messages without a trailer: %v, %v", len(messages), resp, err)
		}
		if g := s.download(ctx, t, path)[0]; string(g.data) != "old" {
			t.Errorf("after %d messages without a trailer the file holds %q", len(messages), g.data)
		}
	}
}

func fileErrors(ctx context.Context, t T, s Sandbox) {
	missing := s.dir + "/no/such/file"
	for i, want := range []sandboxv1.ErrorReason{
		sandboxv1.ErrorReason_ERROR_REASON_FILE_NOT_FOUND, sandboxv1.ErrorReason_ERROR_REASON_FILE_IS_DIRECTORY,
	} {
		g := s.download(ctx, t, []string{missing, s.dir}[i])[0]
		if g.trailer.GetError().GetReason() != want || len(g.data) != 0 {
			t.Errorf("want %v, got %v", want, g.trailer)
		}
	}
	results := s.upload(ctx, t, file{"/proc/no-such/file", []byte("x")}, file{s.dir + "/good", []byte("y")})
	if results[0].GetError() == nil || results[1].GetError() != nil {
		t.Errorf("an impossible and a good file: %v", results)
	}
}

// sameFilesAndUser writes by the one way and reads by the other.
func sameFilesAndUser(ctx context.Context, t T, s Sandbox) {
	if r := s.sh(ctx, t, "umask 077; echo mine >private; mkdir closed; echo in >closed/f"); r.code() != 0 {
		t.Fatalf("%v", r)
	}
	got := s.download(ctx, t, s.dir+"/private", s.dir+"/closed/f")
	if string(got[0].data) != "mine\n" || string(got[1].data) != "in\n" {
		t.Errorf("files of commands: %q, %q", got[0].data, got[1].data)
	}
	s.upload(ctx, t, file{s.dir + "/theirs", []byte("yours")})
	if r := s.sh(ctx, t, "echo more >>theirs && rm theirs"); r.code() != 0 {
		t.Errorf("a command cannot change an uploaded file: %v", r)
	}
}
