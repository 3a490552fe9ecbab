package files_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/files"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

func header(h *sandboxv1.UploadHeader) *sandboxv1.UploadRequest {
	return &sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Header{Header: h}}
}

func chunk(b []byte) *sandboxv1.UploadRequest {
	return &sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Chunk{Chunk: b}}
}

// trailer ends a file; nil states nothing of it.
func trailer(t *sandboxv1.UploadTrailer) *sandboxv1.UploadRequest {
	if t == nil {
		t = &sandboxv1.UploadTrailer{}
	}
	return &sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Trailer{Trailer: t}}
}

// send runs one upload to its end, with a trailer after each file that has none.
func send(t testing.TB, c agentv1.AgentServiceClient, msgs ...*sandboxv1.UploadRequest) ([]*sandboxv1.UploadResult, error) {
	t.Helper()
	return sendOnly(t.Context(), t, c, withTrailers(msgs)...)
}

func withTrailers(msgs []*sandboxv1.UploadRequest) []*sandboxv1.UploadRequest {
	var all []*sandboxv1.UploadRequest
	open := false
	for _, m := range msgs {
		if m.GetHeader() != nil && open {
			all = append(all, trailer(nil))
		}
		open = m.GetHeader() != nil || open && m.GetTrailer() == nil
		all = append(all, m)
	}
	if open {
		all = append(all, trailer(nil))
	}
	return all
}

// sendOnly sends these messages and ends the stream politely.
func sendOnly(ctx context.Context, t testing.TB, c agentv1.AgentServiceClient, msgs ...*sandboxv1.UploadRequest) ([]*sandboxv1.UploadResult, error) {
	t.Helper()
	stream, err := c.Upload(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range msgs {
		if stream.Send(m) != nil {
			break // the reply says why
		}
	}
	resp, err := stream.CloseAndRecv()
	return resp.GetResults(), err
}

// outcomes reduces results to reasons, "" for success.
func outcomes(results []*sandboxv1.UploadResult) []string {
	out := []string{}
	for _, r := range results {
		out = append(out, errorReason(r.GetError()))
	}
	return out
}

func ptr[T any](v T) *T { return &v }

func TestUpload(t *testing.T) {
	_, c := start(t, files.Config{})
	dir := t.TempDir()
	write(t, dir+"/old", "old")
	write(t, dir+"/sub/inner", "x")
	if err := os.Chmod(dir+"/old", 0o751); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(dir+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("old", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("new-by-link", dir+"/dangling"); err != nil {
		t.Fatal(err)
	}

	steps := []struct {
		path    string
		content string
		h       *sandboxv1.UploadHeader
		want    string
	}{
		{path: "/a/b/c", content: "parents"},
		{path: "//x//y/./", content: "odd slashes"},
		{path: "/empty"},
		{path: "/old", content: "replaced"},
		{path: "/link", content: "through the link"},
		{path: "/dangling", content: "made"},
		{path: "/mode", content: "m", h: &sandboxv1.UploadHeader{Mode: ptr(uint32(0o4777))}},
		{path: "/sized", content: "12345", h: &sandboxv1.UploadHeader{Size: ptr(int64(5)), Sha256: sum([]byte("12345"))}},
		{path: "/fresh", content: "f", h: &sandboxv1.UploadHeader{CreateOnly: true}},
		{path: "/sub", content: "x", want: "FILE_IS_DIRECTORY"},
		{path: "/old/below", content: "x", want: "PATH_INVALID"},
		{path: "/fifo", content: "x", want: "FILE_NOT_REGULAR"},
		{path: "/old", content: "x", h: &sandboxv1.UploadHeader{CreateOnly: true}, want: "FILE_ALREADY_EXISTS"},
		{path: "/link", content: "x", h: &sandboxv1.UploadHeader{CreateOnly: true}, want: "FILE_ALREADY_EXISTS"},
		{path: "/short", content: "123", h: &sandboxv1.UploadHeader{Size: ptr(int64(5))}, want: "FILE_CHECKSUM_MISMATCH"},
		{path: "/long", content: "1234567", h: &sandboxv1.UploadHeader{Size: ptr(int64(5))}, want: "FILE_CHECKSUM_MISMATCH"},
		{path: "/sum", content: "other", h: &sandboxv1.UploadHeader{Sha256: sum(nil)}, want: "FILE_CHECKSUM_MISMATCH"},
		{path: "/badsum", content: "x", h: &sandboxv1.UploadHeader{Sha256: []byte("short")}, want: "REQUEST_INVALID"},
		{path: "/badmode", content: "x", h: &sandboxv1.UploadHeader{Mode: ptr(uint32(0o100644))}, want: "REQUEST_INVALID"},
		{path: "/neg", content: "x", h: &sandboxv1.UploadHeader{Offset: -1}, want: "REQUEST_INVALID"},
		{path: "/neg", content: "x", h: &sandboxv1.UploadHeader{Size: ptr(int64(-1))}, want: "REQUEST_INVALID"},
		{path: "/noid", content: "x", h: &sandboxv1.UploadHeader{Offset: 3}, want: "REQUEST_INVALID"},
		{path: "/badid", content: "x", h: &sandboxv1.UploadHeader{UploadId: "a/b"}, want: "REQUEST_INVALID"},
		{path: "/big", content: strings.Repeat("x", 1001), want: "FILE_TOO_LARGE"},
		{path: "/bigger", h: &sandboxv1.UploadHeader{Size: ptr(int64(2000))}, want: "FILE_TOO_LARGE"},
		{path: "/" + strings.Repeat("n", 256), content: "x", want: "PATH_INVALID"},
		{path: "", content: "x", want: "PATH_INVALID"},
		{path: "/last", content: "still here"},
	}
	var msgs []*sandboxv1.UploadRequest
	var want []string
	for i := range steps {
		s := &steps[i]
		if s.h == nil {
			s.h = &sandboxv1.UploadHeader{}
		}
		s.h.Path = s.path
		if s.path != "" {
			s.h.Path = dir + s.path
		}
		msgs = append(msgs, header(s.h))
		for i := 0; i < len(s.content); i += 4 {
			msgs = append(msgs, chunk([]byte(s.content[i:min(i+4, len(s.content))])))
		}
		want = append(want, s.want)
	}
	results, err := sendOnly(called(t.Context(), &agentv1.Limits{MaxFileBytes: 1000}), t, c, withTrailers(msgs)...)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, outcomes(results)); diff != "" {
		t.Fatalf("results (-want +got):\n%s", diff)
	}
	for i, s := range steps {
		if s.want == "" {
			r := results[i]
			if r.GetPath() != s.h.GetPath() || r.GetSize() != int64(len(s.content)) || !bytes.Equal(r.GetSha256(), sum([]byte(s.content))) {
				t.Errorf("%s: result %v", s.path, r)
			}
		}
	}
	for path, content := range map[string]string{
		"/a/b/c": "parents", "/x/y": "odd slashes", "/empty": "", "/old": "through the link",
		"/new-by-link": "made", "/last": "still here", "/fresh": "f",
	} {
		if got := read(t, dir+path); got != content {
			t.Errorf("%s holds %q, want %q", path, got, content)
		}
	}
	for path, mode := range map[string]os.FileMode{"/old": 0o751, "/empty": 0o644, "/mode": 0o777 | os.ModeSetuid} {
		if st, err := os.Stat(dir + path); err != nil || st.Mode() != mode {
			t.Errorf("%s: mode %v, %v, want %v", path, st.Mode(), err, mode)
		}
	}
	wantNames := []string{"a", "dangling", "empty", "fifo", "fresh", "last", "link", "mode", "new-by-link", "old", "sized", "sub", "x"}
	if diff := cmp.Diff(wantNames, names(t, dir)); diff != "" {
		t.Errorf("directory (-want +got):\n%s", diff)
	}
}

func TestUploadOrder(t *testing.T) {
	_, c := start(t, files.Config{})
	dir := t.TempDir()
	h := header(&sandboxv1.UploadHeader{Path: dir + "/f"})
	for name, msgs := range map[string][]*sandboxv1.UploadRequest{
		"nothing":            {},
		"chunk first":        {chunk([]byte("x"))},
		"empty chunk first":  {chunk(nil)},
		"no payload":         {h, {}},
		"empty chunk":        {h, chunk(nil)},
		"huge chunk":         {h, chunk(make([]byte, 1<<20+1))},
		"trailer first":      {trailer(nil)},
		"two trailers":       {header(&sandboxv1.UploadHeader{Path: "/dev/null"}), trailer(nil), trailer(nil)},
		"chunk after":        {header(&sandboxv1.UploadHeader{Path: "/dev/null"}), trailer(nil), chunk([]byte("x"))},
		"header in a file":   {h, chunk([]byte("x")), h, trailer(nil)},
		"end after a header": {h},
		"end in a file":      {h, chunk([]byte("x"))},
	} {
		if _, err := sendOnly(t.Context(), t, c, msgs...); reason(t, err) != "UPLOAD_OUT_OF_ORDER" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := names(t, dir); len(got) != 0 {
		t.Errorf("left behind: %q", got)
	}
}

// A stream that ends politely within a file is how some HTTP/2 stacks cancel.
func TestUploadWithoutTrailerKeepsTheOldContent(t *testing.T) {
	for _, hidden := range []bool{false, true} {
		t.Run(fmt.Sprintf("hidden %v", hidden), func(t *testing.T) {
			_, c := start(t, files.Config{NoTmpfile: hidden})
			dir := t.TempDir()
			write(t, dir+"/f", "old")
			_, err := sendOnly(t.Context(), t, c,
				header(&sandboxv1.UploadHeader{Path: dir + "/done"}), chunk([]byte("done")), trailer(nil),
				header(&sandboxv1.UploadHeader{Path: dir + "/f"}), chunk([]byte("half")))
			if reason(t, err) != "UPLOAD_OUT_OF_ORDER" {
				t.Errorf("it ended with %v", err)
			}
			if diff := cmp.Diff([]string{"done", "f"}, names(t, dir)); diff != "" || read(t, dir+"/f") != "old" {
				t.Errorf("f holds %q, directory (-want +got):\n%s", read(t, dir+"/f"), diff)
			}

			// A resumable one keeps its part.
			h := func(offset int64) *sandboxv1.UploadRequest {
				return header(&sandboxv1.UploadHeader{Path: dir + "/f", UploadId: "u", Offset: offset})
			}
			if _, err := sendOnly(t.Context(), t, c, h(0), chunk([]byte("half"))); reason(t, err) != "UPLOAD_OUT_OF_ORDER" {
				t.Errorf("the resumable one ended with %v", err)
			}
			await(t, func() bool { got, err := getUpload(t, c, "u"); return err == nil && got.GetOffset() == 4 })
			end := trailer(&sandboxv1.UploadTrailer{Size: ptr(int64(6)), Sha256: sum([]byte("half+2"))})
			results, err := sendOnly(t.Context(), t, c, h(4), chunk([]byte("+2")), end)
			if err != nil || outcomes(results)[0] != "" || read(t, dir+"/f") != "half+2" {
				t.Errorf("resumed: %v, %v, %q", results, err, read(t, dir+"/f"))
			}
		})
	}
}

func TestUploadTrailerIsChecked(t *testing.T) {
	_, c := start(t, files.Config{})
	dir := t.TempDir()
	for name, test := range map[string]struct {
		h    *sandboxv1.UploadHeader
		t    *sandboxv1.UploadTrailer
		want string
	}{
		"right":                   {t: &sandboxv1.UploadTrailer{Size: ptr(int64(5)), Sha256: sum([]byte("12345"))}},
		"right twice":             {h: &sandboxv1.UploadHeader{Size: ptr(int64(5))}, t: &sandboxv1.UploadTrailer{Size: ptr(int64(5))}},
		"fewer bytes":             {t: &sandboxv1.UploadTrailer{Size: ptr(int64(6))}, want: "FILE_CHECKSUM_MISMATCH"},
		"more bytes":              {t: &sandboxv1.UploadTrailer{Size: ptr(int64(4))}, want: "FILE_CHECKSUM_MISMATCH"},
		"other bytes":             {t: &sandboxv1.UploadTrailer{Sha256: sum(nil)}, want: "FILE_CHECKSUM_MISMATCH"},
		"contradicts its header":  {h: &sandboxv1.UploadHeader{Size: ptr(int64(5))}, t: &sandboxv1.UploadTrailer{Size: ptr(int64(0))}, want: "FILE_CHECKSUM_MISMATCH"},
		"negative":                {t: &sandboxv1.UploadTrailer{Size: ptr(int64(-1))}, want: "REQUEST_INVALID"},
		"no SHA-256":              {t: &sandboxv1.UploadTrailer{Sha256: []byte("short")}, want: "REQUEST_INVALID"},
		"resumable, not complete": {h: &sandboxv1.UploadHeader{UploadId: "u"}, t: &sandboxv1.UploadTrailer{Size: ptr(int64(9))}, want: "FILE_CHECKSUM_MISMATCH"},
	} {
		t.Run(name, func(t *testing.T) {
			write(t, dir+"/f", "old")
			h := &sandboxv1.UploadHeader{}
			if test.h != nil {
				h = test.h
			}
			h.Path = dir + "/f"
			results, err := sendOnly(t.Context(), t, c, header(h), chunk([]byte("12345")), trailer(test.t))
			if err != nil || outcomes(results)[0] != test.want {
				t.Fatalf("%v, %v, want %q", results, err, test.want)
			}
			content := "old"
			if test.want == "" {
				content = "12345"
			}
			if got := read(t, dir+"/f"); got != content {
				t.Errorf("f holds %q", got)
			}
		})
	}
	if got, err := getUpload(t, c, "u"); err != nil || got.GetOffset() != 5 {
		t.Errorf("the part of an incomplete upload: %v, %v", got, err)
	}
}

// TestCancelledUploadLeavesTheOldContent checks that the old content stays and nothing else does.
func TestCancelledUploadLeavesTheOldContent(t *testing.T) {
	for _, hidden := range []bool{false, true} {
		t.Run(fmt.Sprintf("hidden %v", hidden), func(t *testing.T) {
			svc, c := start(t, files.Config{NoTmpfile: hidden})
			dir := t.TempDir()
			write(t, dir+"/f", "old")
			ctx, cancel := context.WithCancel(t.Context())
			stream, err := c.Upload(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range []*sandboxv1.UploadRequest{
				header(&sandboxv1.UploadHeader{Path: dir + "/done"}), chunk([]byte("done")), trailer(nil),
				header(&sandboxv1.UploadHeader{Path: dir + "/f"}), chunk(make([]byte, 1<<20)),
			} {
				if err := stream.Send(m); err != nil {
					t.Fatal(err)
				}
			}
			await(t, func() bool { return partSize(t) == 1<<20 })
			want := 2 // done and f
			if hidden {
				want++
			}
			if n := len(names(t, dir)); n != want {
				t.Errorf("%d names while it is under way, want %d", n, want)
			}
			cancel()
			await(t, func() bool { n, _ := svc.Active(); return n == 0 })
			if diff := cmp.Diff([]string{"done", "f"}, names(t, dir)); diff != "" {
				t.Errorf("directory (-want +got):\n%s", diff)
			}
			if n := len(drafts(t, dir)); n != 0 {
				t.Errorf("%d drafts are left", n)
			}
			if got := read(t, dir+"/f"); got != "old" {
				t.Errorf("f holds %q", got)
			}
		})
	}
}

// await waits until the condition holds.
func await(t testing.TB, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the condition did not come true")
		}
	}
}
