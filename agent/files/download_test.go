package files_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand"
	"os"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/files"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

type downloaded struct {
	Header  bool
	Content string
	Error   string
}

// receive downloads items and checks order, sizes and hashes.
func receive(t testing.TB, c agentv1.AgentServiceClient, conf []*sandboxv1.AccessPolicy, items ...*sandboxv1.DownloadItem) ([]downloaded, error) {
	t.Helper()
	stream, err := c.Download(called(t.Context(), nil, conf...), &sandboxv1.DownloadRequest{Items: items})
	if err != nil {
		t.Fatal(err)
	}
	var out []downloaded
	var cur downloaded
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		switch p := msg.GetPayload().(type) {
		case *sandboxv1.DownloadResponse_Header:
			if cur.Header || p.Header.GetIndex() != int32(len(out)) || p.Header.GetOffset() != items[len(out)].GetOffset() {
				t.Errorf("header %v at item %d", p.Header, len(out))
			}
			cur.Header = true
		case *sandboxv1.DownloadResponse_Chunk:
			if !cur.Header || len(p.Chunk) == 0 || len(p.Chunk) > 1<<20 {
				t.Errorf("chunk of %d bytes", len(p.Chunk))
			}
			cur.Content += string(p.Chunk)
		case *sandboxv1.DownloadResponse_Trailer:
			tr := p.Trailer
			cur.Error = errorReason(tr.GetError())
			if tr.GetIndex() != int32(len(out)) || tr.GetSize() != int64(len(cur.Content)) {
				t.Errorf("trailer %v", tr)
			}
			if cur.Header && !bytes.Equal(tr.GetSha256(), sum([]byte(cur.Content))) {
				t.Error("wrong hash")
			}
			out = append(out, cur)
			cur = downloaded{}
		}
	}
}

func TestDownload(t *testing.T) {
	_, c := start(t, files.Config{})
	dir := t.TempDir()
	big := make([]byte, 1<<20+7)
	_, _ = rand.New(rand.NewSource(1)).Read(big)
	write(t, dir+"/big", string(big))
	write(t, dir+"/small", "a\x00b")
	write(t, dir+"/empty", "")
	for _, err := range []error{
		unix.Mkfifo(dir+"/fifo", 0o600), os.Symlink("small", dir+"/link"), os.Symlink("nowhere", dir+"/dangling"),
		os.Symlink("loop", dir+"/loop"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		item *sandboxv1.DownloadItem
		want downloaded
	}{
		{&sandboxv1.DownloadItem{Path: dir + "/big"}, downloaded{Header: true, Content: string(big)}},
		{&sandboxv1.DownloadItem{Path: dir + "/small"}, downloaded{Header: true, Content: "a\x00b"}},
		{&sandboxv1.DownloadItem{Path: dir + "//./small/"}, downloaded{Header: true, Content: "a\x00b"}},
		{&sandboxv1.DownloadItem{Path: dir + "/link"}, downloaded{Header: true, Content: "a\x00b"}},
		{&sandboxv1.DownloadItem{Path: dir + "/empty"}, downloaded{Header: true}},
		{&sandboxv1.DownloadItem{Path: dir + "/big", Offset: 1 << 20}, downloaded{Header: true, Content: string(big[1<<20:])}},
		{&sandboxv1.DownloadItem{Path: dir + "/big", Offset: 5, Limit: ptr(int64(300_000))}, downloaded{Header: true, Content: string(big[5:300_005])}},
		{&sandboxv1.DownloadItem{Path: dir + "/big", Limit: ptr(int64(0))}, downloaded{Header: true}},
		{&sandboxv1.DownloadItem{Path: dir + "/big", Offset: 1 << 30}, downloaded{Header: true}},
		{&sandboxv1.DownloadItem{Path: dir + "/missing"}, downloaded{Error: "FILE_NOT_FOUND"}},
		{&sandboxv1.DownloadItem{Path: dir + "/dangling"}, downloaded{Error: "FILE_NOT_FOUND"}},
		{&sandboxv1.DownloadItem{Path: dir}, downloaded{Error: "FILE_IS_DIRECTORY"}},
		{&sandboxv1.DownloadItem{Path: dir + "/fifo"}, downloaded{Error: "FILE_NOT_REGULAR"}},
		{&sandboxv1.DownloadItem{Path: "/dev/null"}, downloaded{Error: "FILE_NOT_REGULAR"}},
		{&sandboxv1.DownloadItem{Path: dir + "/small/x"}, downloaded{Error: "PATH_INVALID"}},
		{&sandboxv1.DownloadItem{Path: dir + "/loop"}, downloaded{Error: "PATH_INVALID"}},
		{&sandboxv1.DownloadItem{Path: "relative"}, downloaded{Error: "PATH_INVALID"}},
		{&sandboxv1.DownloadItem{Path: ""}, downloaded{Error: "PATH_INVALID"}},
		{&sandboxv1.DownloadItem{Path: dir + "/a\x00b"}, downloaded{Error: "PATH_INVALID"}},
		{&sandboxv1.DownloadItem{Path: dir + "/small", Offset: -1}, downloaded{Error: "REQUEST_INVALID"}},
		{&sandboxv1.DownloadItem{Path: dir + "/small", Limit: ptr(int64(-1))}, downloaded{Error: "REQUEST_INVALID"}},
		{&sandboxv1.DownloadItem{Path: dir + "/small"}, downloaded{Header: true, Content: "a\x00b"}},
	}
	var items []*sandboxv1.DownloadItem
	var want []downloaded
	for i := range tests {
		items = append(items, tests[i].item)
		want = append(want, tests[i].want)
	}
	got, err := receive(t, c, nil, items...)
	if err != nil {
		t.Fatal(err)
	}
	for i := range tests {
		if got[i] != want[i] {
			t.Errorf("%v: header %v, %d bytes, %q", items[i], got[i].Header, len(got[i].Content), got[i].Error)
		}
	}
	for _, n := range []int{0, 1001} {
		if _, err := receive(t, c, nil, make([]*sandboxv1.DownloadItem, n)...); reason(t, err) != "REQUEST_INVALID" {
			t.Errorf("%d items: %v", n, err)
		}
	}
}

func TestDownloadCancelled(t *testing.T) {
	svc, c := start(t, files.Config{})
	path := t.TempDir() + "/sparse"
	write(t, path, "")
	if err := os.Truncate(path, 10<<30); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := c.Download(ctx, &sandboxv1.DownloadRequest{
		Items: []*sandboxv1.DownloadItem{{Path: path}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	await(t, func() bool { n, _ := svc.Active(); return n == 0 })
}

// TestTransferBoundedMemory moves far more than it may hold.
func TestTransferBoundedMemory(t *testing.T) {
	const size, bound = 64 << 20, 24 << 20
	_, c := start(t, files.Config{})
	path := t.TempDir() + "/f"
	piece := make([]byte, 256<<10)
	_, _ = rand.New(rand.NewSource(2)).Read(piece)
	base := heap()
	var peak uint64
	stream, err := c.Upload(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []*sandboxv1.UploadRequest{header(&sandboxv1.UploadHeader{Path: path, Size: ptr(int64(size))})} {
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	for i := range size / len(piece) {
		if err := stream.Send(chunk(piece)); err != nil {
			t.Fatal(err)
		}
		if i%32 == 0 {
			peak = max(peak, heap())
		}
	}
	if err := stream.Send(trailer(nil)); err != nil {
		t.Fatal(err)
	}
	if resp, err := stream.CloseAndRecv(); err != nil || outcomes(resp.GetResults())[0] != "" {
		t.Fatalf("%v, %v", resp, err)
	}
	down, err := c.Download(t.Context(), &sandboxv1.DownloadRequest{
		Items: []*sandboxv1.DownloadItem{{Path: path}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var n int
	for i := 0; ; i++ {
		msg, err := down.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		n += len(msg.GetChunk())
		if i%32 == 0 {
			peak = max(peak, heap())
		}
	}
	if n != size {
		t.Errorf("%d of %d bytes came back", n, size)
	}
	// The live heap of both sides; the race detector does not count in it.
	if peak > base+bound {
		t.Errorf("%d MiB were held for a file of %d MiB", (peak-base)>>20, size>>20)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestUnreadable(t *testing.T) {
	if !unprivileged(t) {
		return
	}
	_, c := start(t, files.Config{})
	dir := t.TempDir()
	write(t, dir+"/secret", "s")
	write(t, dir+"/readonly", "r")
	write(t, dir+"/closed/f", "f")
	for path, mode := range map[string]os.FileMode{"/secret": 0, "/readonly": 0o444, "/closed": 0} {
		if err := os.Chmod(dir+path, mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = os.Chmod(dir+"/closed", 0o755) })
	got, err := receive(t, c, nil, &sandboxv1.DownloadItem{Path: dir + "/secret"},
		&sandboxv1.DownloadItem{Path: dir + "/closed/f"}, &sandboxv1.DownloadItem{Path: dir + "/readonly"})
	want := []downloaded{{Error: "FILE_PERMISSION_DENIED"}, {Error: "FILE_PERMISSION_DENIED"}, {Header: true, Content: "r"}}
	if err != nil || !cmp.Equal(want, got) {
		t.Errorf("download: %v, %v", got, err)
	}
	results, err := send(t, c, header(&sandboxv1.UploadHeader{Path: dir + "/closed/new"}),
		header(&sandboxv1.UploadHeader{Path: dir + "/readonly"}), header(&sandboxv1.UploadHeader{Path: "/etc/new"}),
		header(&sandboxv1.UploadHeader{Path: "/new/dir/new"}))
	if err != nil || !cmp.Equal([]string{"FILE_PERMISSION_DENIED", "FILE_PERMISSION_DENIED", "FILE_PERMISSION_DENIED", "FILE_PERMISSION_DENIED"}, outcomes(results)) {
		t.Errorf("upload: %v, %v", results, err)
	}
}
