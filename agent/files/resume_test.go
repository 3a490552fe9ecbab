package files_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/files"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

func TestUploadResume(t *testing.T) {
	for name, hidden := range map[string]bool{"unnamed": false, "hidden": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			svc, c := start(t, files.Config{NoTmpfile: hidden})
			content := make([]byte, 3<<20+17)
			_, _ = rand.Read(content)
			write(t, dir+"/f", "old")
			h := func(offset int64) *sandboxv1.UploadRequest {
				return header(&sandboxv1.UploadHeader{Path: dir + "/f", UploadId: "u-1", Offset: offset, Sha256: sum(content)})
			}

			var at int64
			for _, cut := range []int{300_000, 1 << 20, 2_000_000} {
				breakOff(t, svc, c, h(at), content[at:cut])
				got, err := getUpload(t, c, "u-1")
				if err != nil || got.GetOffset() != int64(cut) || got.GetComplete() || got.GetPath() != dir+"/f" {
					t.Fatalf("GetUpload after %d bytes: %v, %v", cut, got, err)
				}
				if left := time.Until(got.GetExpireTime().AsTime()); left < 59*time.Minute || left > time.Hour {
					t.Errorf("kept for %v", left)
				}
				at = int64(cut)
				if read(t, dir+"/f") != "old" {
					t.Fatal("the old content is gone")
				}
			}
			results, err := send(t, c, h(7), header(&sandboxv1.UploadHeader{Path: dir + "/g", UploadId: "u-1", Offset: at}),
				header(&sandboxv1.UploadHeader{Path: dir + "/f", UploadId: "u-9", Offset: 1}))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"UPLOAD_OFFSET_MISMATCH", "REQUEST_INVALID", "UPLOAD_NOT_FOUND"}, outcomes(results)); diff != "" {
				t.Errorf("results (-want +got):\n%s", diff)
			}

			msgs := append([]*sandboxv1.UploadRequest{h(at)}, pieces(content[at:])...)
			if results, err = send(t, c, msgs...); err != nil || outcomes(results)[0] != "" {
				t.Fatalf("%v, %v", results, err)
			}
			if got := read(t, dir+"/f"); got != string(content) || !bytes.Equal(results[0].GetSha256(), sum(content)) {
				t.Error("the content differs")
			}
			if got, err := getUpload(t, c, "u-1"); err != nil || !got.GetComplete() || got.GetOffset() != int64(len(content)) {
				t.Errorf("GetUpload at the end: %v, %v", got, err)
			}
			// The reply was lost: the end may be asked for again.
			if results, err = send(t, c, h(int64(len(content)))); err != nil || !bytes.Equal(results[0].GetSha256(), sum(content)) {
				t.Errorf("again: %v, %v", results, err)
			}
			if diff := cmp.Diff([]string{"f"}, names(t, dir)); diff != "" {
				t.Errorf("directory (-want +got):\n%s", diff)
			}
		})
	}
}

// A link in the path leads to another file system when the upload goes on: the part is
// copied there, and not left.
func TestUploadResumeOnAnotherFileSystem(t *testing.T) {
	other, err := os.MkdirTemp("/dev/shm", "sg")
	if err != nil {
		t.Skipf("no other file system: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(other) })
	for name, hidden := range map[string]bool{"unnamed": false, "hidden": true} {
		t.Run(name, func(t *testing.T) {
			first, second := t.TempDir(), filepath.Join(other, name)
			link := filepath.Join(t.TempDir(), "link")
			if err := errors.Join(os.Mkdir(second, 0o700), os.Symlink(first, link)); err != nil {
				t.Fatal(err)
			}
			svc, c := start(t, files.Config{NoTmpfile: hidden})
			content := make([]byte, 1<<20)
			_, _ = rand.Read(content)
			h := func(offset int64) *sandboxv1.UploadRequest {
				return header(&sandboxv1.UploadHeader{Path: link + "/f", UploadId: "u-1", Offset: offset, Sha256: sum(content)})
			}
			breakOff(t, svc, c, h(0), content[:300_000])
			if err := errors.Join(os.Remove(link), os.Symlink(second, link)); err != nil {
				t.Fatal(err)
			}
			results, err := send(t, c, append([]*sandboxv1.UploadRequest{h(300_000)}, pieces(content[300_000:])...)...)
			if err != nil || outcomes(results)[0] != "" {
				t.Fatalf("%v, %v", results, err)
			}
			if read(t, second+"/f") != string(content) {
				t.Error("the content differs")
			}
			if left := append(names(t, first), names(t, second)...); !slices.Equal(left, []string{"f"}) {
				t.Errorf("files: %q", left)
			}
		})
	}
}

// breakOff sends content and then cuts the stream.
func breakOff(t testing.TB, svc *files.Service, c agentv1.AgentServiceClient, h *sandboxv1.UploadRequest, content []byte) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := c.Upload(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range append([]*sandboxv1.UploadRequest{h}, pieces(content)...) {
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	await(t, func() bool {
		_, err := getUpload(t, c, h.GetHeader().GetUploadId())
		return reason(t, err) == "UPLOAD_BUSY"
	})
	size := h.GetHeader().GetOffset() + int64(len(content))
	await(t, func() bool { return partSize(t) == size })
	cancel()
	await(t, func() bool { n, _ := svc.Active(); return n == 0 })
}

// drafts are the sizes of the files that this process holds open and that are
// not in their places yet, nameless or hidden, below a directory.
func drafts(t testing.TB, dir string) []int64 {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var sizes []int64
	for _, fd := range fds {
		link := "/proc/self/fd/" + fd.Name()
		target, err := os.Readlink(link)
		name := filepath.Base(target)
		nameless := strings.HasPrefix(name, "#") && strings.HasSuffix(name, " (deleted)")
		if err != nil || !strings.HasPrefix(target, dir) || !nameless && !strings.HasPrefix(name, ".sandgate-") {
			continue
		}
		if st, err := os.Stat(link); err == nil {
			sizes = append(sizes, st.Size())
		}
	}
	return sizes
}

// partSize is the size of an open draft. All that are open at a time have the
// same size in these tests.
func partSize(t testing.TB) int64 {
	t.Helper()
	if sizes := drafts(t, "/"); len(sizes) > 0 {
		return sizes[0]
	}
	return -1
}

func pieces(content []byte) []*sandboxv1.UploadRequest {
	var out []*sandboxv1.UploadRequest
	for len(content) > 0 {
		n := min(100_003, len(content))
		out = append(out, chunk(content[:n]))
		content = content[n:]
	}
	return out
}

func getUpload(t testing.TB, c agentv1.AgentServiceClient, id string) (*sandboxv1.GetUploadResponse, error) {
	t.Helper()
	return c.GetUpload(t.Context(), &sandboxv1.GetUploadRequest{UploadId: id})
}

func TestUploadBusyExpiryAndEviction(t *testing.T) {
	svc, c := start(t, files.Config{PartRetention: 50 * time.Millisecond, MaxParts: 2})
	dir := t.TempDir()
	stream, err := c.Upload(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	up := func(id string) *sandboxv1.UploadRequest {
		return header(&sandboxv1.UploadHeader{Path: dir + "/" + id, UploadId: id})
	}
	for _, m := range []*sandboxv1.UploadRequest{up("a"), chunk([]byte("x"))} {
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	await(t, func() bool { return len(drafts(t, dir)) == 1 })
	results, err := send(t, c, up("a"), chunk([]byte("y")), header(&sandboxv1.UploadHeader{Path: dir + "/other"}))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"UPLOAD_BUSY", ""}, outcomes(results)); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	if err := stream.Send(trailer(nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.CloseAndRecv(); err != nil {
		t.Fatal(err)
	}
	if read(t, dir+"/a") != "x" {
		t.Error("the busy upload was disturbed")
	}

	breakOff(t, svc, c, up("b"), []byte("part"))
	await(t, func() bool { _, err := getUpload(t, c, "b"); return reason(t, err) == "UPLOAD_NOT_FOUND" })
	if diff := cmp.Diff([]string{"a", "other"}, names(t, dir)); diff != "" {
		t.Errorf("after the retention (-want +got):\n%s", diff)
	}
	if n := len(drafts(t, dir)); n != 0 {
		t.Errorf("%d parts are kept after the retention", n)
	}

	for i := range 5 {
		breakOff(t, svc, c, up(fmt.Sprint("many-", i)), []byte("part"))
		if n := len(drafts(t, dir)); n > 2 {
			t.Errorf("%d parts are kept", n)
		}
	}
}

func TestUploadDiskFull(t *testing.T) {
	dir := tmpfs(t, "4m")
	_, c := start(t, files.Config{})
	write(t, dir+"/f", "old")
	big := pieces(make([]byte, 6<<20))
	plain := append([]*sandboxv1.UploadRequest{header(&sandboxv1.UploadHeader{Path: dir + "/f"})}, big...)
	results, err := send(t, c, append(plain, header(&sandboxv1.UploadHeader{Path: dir + "/next"}), chunk([]byte("fits")))...)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"DISK_FULL", ""}, outcomes(results)); diff != "" {
		t.Fatalf("results (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"f", "next"}, names(t, dir)); diff != "" || read(t, dir+"/f") != "old" {
		t.Errorf("directory (-want +got):\n%s", diff)
	}

	// A resumable one does not keep the disk full, and begins anew.
	id := &sandboxv1.UploadHeader{Path: dir + "/f", UploadId: "u"}
	whole := append([]*sandboxv1.UploadRequest{header(id)}, big...)
	results, err = send(t, c, whole...)
	if err != nil || outcomes(results)[0] != "DISK_FULL" {
		t.Fatalf("%v, %v", results, err)
	}
	if got, err := getUpload(t, c, "u"); err == nil {
		t.Errorf("the part is still there: %v", got)
	}
	if diff := cmp.Diff([]string{"f", "next"}, names(t, dir)); diff != "" || read(t, dir+"/f") != "old" {
		t.Errorf("directory (-want +got):\n%s", diff)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, "size=16m"); err != nil {
		t.Fatal(err)
	}
	results, err = send(t, c, whole...)
	if err != nil || outcomes(results)[0] != "" || !bytes.Equal(results[0].GetSha256(), sum(make([]byte, 6<<20))) {
		t.Fatalf("%v, %v", results, err)
	}
}

// tmpfs mounts a small file system, which needs root.
func tmpfs(t testing.TB, size string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("mounting a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}
