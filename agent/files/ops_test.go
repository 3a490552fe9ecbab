package files_test

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandgate/sandgate/agent/files"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

func TestStat(t *testing.T) {
	_, c := start(t, files.Config{})
	dir := t.TempDir()
	write(t, dir+"/f", "12345")
	for name, target := range map[string]string{"/link": "f", "/dirlink": ".", "/dead": "none", "/out": "/etc/passwd"} {
		if err := os.Symlink(target, dir+name); err != nil {
			t.Fatal(err)
		}
	}
	stat := func(path string, conf []*sandboxv1.AccessPolicy) (string, error) {
		resp, err := c.StatFile(called(t.Context(), nil, conf...), &sandboxv1.StatFileRequest{Path: path})
		i := resp.GetInfo()
		return fmt.Sprintf("%v %d %o %s %v", i.GetType(), i.GetSize(), i.GetMode(), i.GetSymlinkTarget(), i.GetTargetType()), err
	}
	for path, want := range map[string]string{
		dir + "/f":       "FILE_TYPE_REGULAR 5 644  FILE_TYPE_UNSPECIFIED",
		dir + "//./f/":   "FILE_TYPE_REGULAR 5 644  FILE_TYPE_UNSPECIFIED",
		dir + "/link":    "FILE_TYPE_SYMLINK 1 777 f FILE_TYPE_REGULAR",
		dir + "/dirlink": "FILE_TYPE_SYMLINK 1 777 . FILE_TYPE_DIRECTORY",
		dir + "/dead":    "FILE_TYPE_SYMLINK 4 777 none FILE_TYPE_UNSPECIFIED",
		"/dev/null":      "FILE_TYPE_OTHER 0 666  FILE_TYPE_UNSPECIFIED",
	} {
		if got, err := stat(path, nil); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", path, got, err, want)
		}
	}
	for _, path := range []string{"/", "/..", dir + "/.."} {
		if got, err := stat(path, nil); err != nil || !strings.HasPrefix(got, "FILE_TYPE_DIRECTORY") {
			t.Errorf("%s: %s, %v", path, got, err)
		}
	}
	for path, want := range map[string]string{dir + "/none": "FILE_NOT_FOUND", dir + "/f/x": "PATH_INVALID", "f": "PATH_INVALID", "": "PATH_INVALID"} {
		if _, err := stat(path, nil); reason(t, err) != want {
			t.Errorf("%s: %v, want %s", path, err, want)
		}
	}
	root := []*sandboxv1.AccessPolicy{{RootDir: dir, Virtual: true, ReadDenyPrefixes: []string{"/f"}}}
	if got, err := stat("/out", root); err != nil || got != "FILE_TYPE_SYMLINK 11 777 /etc/passwd FILE_TYPE_UNSPECIFIED" {
		t.Errorf("a link out of the root: %s, %v", got, err)
	}
	if got, err := stat("/", root); err != nil || !strings.HasPrefix(got, "FILE_TYPE_DIRECTORY") {
		t.Errorf("the virtual root: %s, %v", got, err)
	}
	if got, err := stat("/link", root); err != nil || got != "FILE_TYPE_SYMLINK 1 777 f FILE_TYPE_UNSPECIFIED" {
		t.Errorf("a link to what is denied: %s, %v", got, err)
	}
	if _, err := stat("/f", root); reason(t, err) != "POLICY_DENIED" {
		t.Errorf("denied: %v", err)
	}
}

func TestListDirectory(t *testing.T) {
	_, c := start(t, files.Config{})
	dir := t.TempDir()
	var want []string
	for i := range 25 {
		write(t, fmt.Sprintf("%s/n%02d", dir, i), "x")
		want = append(want, fmt.Sprintf("%s/n%02d", dir, i))
	}
	list := func(path, token string, size int32, conf []*sandboxv1.AccessPolicy) (*sandboxv1.ListDirectoryResponse, error) {
		return c.ListDirectory(called(t.Context(), nil, conf...), &sandboxv1.ListDirectoryRequest{Path: path, PageToken: token, PageSize: size})
	}
	for _, size := range []int32{0, 1, 7, 24, 25, 26} {
		var got []string
		token := ""
		for pages := 0; pages == 0 || token != ""; pages++ {
			resp, err := list(dir, token, size, nil)
			if err != nil || pages > 25 {
				t.Fatal(pages, err)
			}
			for _, e := range resp.GetEntries() {
				got = append(got, e.GetPath())
			}
			token = resp.GetNextPageToken()
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("pages of %d (-want +got):\n%s", size, diff)
		}
	}
	// The page after "n06" is the same whatever happens to what was listed.
	first, err := list(dir, "", 7, nil)
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/a-new", "x")
	if err := os.Remove(dir + "/n06"); err != nil {
		t.Fatal(err)
	}
	second, err := list(dir, first.GetNextPageToken(), 1, nil)
	if err != nil || second.GetEntries()[0].GetPath() != dir+"/n07" {
		t.Errorf("%v, %v", second, err)
	}
	for _, token := range []string{"!", "AAAA", first.GetNextPageToken() + "!"} {
		if _, err := list(dir, token, 0, nil); reason(t, err) != "PAGE_TOKEN_INVALID" {
			t.Errorf("token %q: %v", token, err)
		}
	}
	if _, err := list("/", first.GetNextPageToken(), 0, nil); reason(t, err) != "PAGE_TOKEN_INVALID" {
		t.Errorf("another directory's token: %v", err)
	}
	empty := t.TempDir()
	if resp, err := list(empty, "", 0, nil); err != nil || len(resp.GetEntries()) != 0 {
		t.Errorf("%v, %v", resp, err)
	}
	for path, want := range map[string]string{dir + "/none": "FILE_NOT_FOUND", dir + "/n01": "FILE_NOT_DIRECTORY", "/dev/null": "FILE_NOT_DIRECTORY"} {
		if _, err := list(path, "", 0, nil); reason(t, err) != want {
			t.Errorf("%s: %v, want %s", path, err, want)
		}
	}
	resp, err := list(dir+"//", "", 0, []*sandboxv1.AccessPolicy{{ReadDenyPrefixes: []string{dir + "/n01"}}})
	if err != nil || len(resp.GetEntries()) != 24 || resp.GetEntries()[0].GetPath() != dir+"/a-new" {
		t.Errorf("under a policy: %v, %v", resp, err)
	}
	// A name that is not UTF-8 must not break the reply.
	write(t, empty+"/bad\xff", "x")
	if resp, err := list(empty, "", 0, nil); err != nil || resp.GetEntries()[0].GetPath() != empty+"/bad\uFFFD" {
		t.Errorf("%v, %v", resp, err)
	}
}

func TestMakeDirectory(t *testing.T) {
	_, c := start(t, files.Config{})
	dir := t.TempDir()
	write(t, dir+"/f", "x")
	if err := os.Symlink(".", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	for i, tt := range []struct {
		path    string
		parents bool
		mode    *uint32
		want    string // "created", "there" or a reason
	}{
		{"/a", false, nil, "created"},
		{"/a", false, nil, "FILE_ALREADY_EXISTS"},
		{"/a", true, nil, "there"},
		{"/b/c/d", false, nil, "FILE_NOT_FOUND"},
		{"/b/c/d", true, ptr(uint32(0o2775)), "created"},
		{"/f", true, nil, "FILE_ALREADY_EXISTS"},
		{"/f/x", true, nil, "PATH_INVALID"},
		{"/link", true, nil, "there"},
		{"/link/e/", true, nil, "created"},
		{"/", true, nil, "there"},
		{"/g", false, ptr(uint32(0o10000)), "REQUEST_INVALID"},
	} {
		resp, err := c.MakeDirectory(t.Context(), &sandboxv1.MakeDirectoryRequest{Path: dir + tt.path, Parents: tt.parents, Mode: tt.mode})
		got := reason(t, err)
		if err == nil {
			got = map[bool]string{true: "created", false: "there"}[resp.GetCreated()]
		}
		if got != tt.want {
			t.Errorf("%d %s: %s, want %s", i, tt.path, got, tt.want)
		}
	}
	if st, err := os.Stat(dir + "/b/c/d"); err != nil || st.Mode() != os.ModeDir|os.ModeSetgid|0o775 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if _, err := os.Stat(dir + "/e"); err != nil {
		t.Error(err)
	}
}

func TestMove(t *testing.T) {
	_, c := start(t, files.Config{})
	dir := t.TempDir()
	write(t, dir+"/a", "a")
	write(t, dir+"/b", "b")
	write(t, dir+"/d/x", "x")
	write(t, dir+"/full/y", "y")
	if err := os.Symlink("/etc/passwd", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	move := func(from, to string, overwrite bool, policies ...*sandboxv1.AccessPolicy) string {
		_, err := c.MoveFile(called(t.Context(), nil, policies...), &sandboxv1.MoveFileRequest{Source: from, Destination: to, Overwrite: overwrite})
		return reason(t, err)
	}
	for i, tt := range []struct {
		from, to  string
		overwrite bool
		want      string
	}{
		{"/a", "/b", false, "FILE_ALREADY_EXISTS"},
		{"/a", "/b", true, ""},
		{"/b", "/c", false, ""},
		{"/c", "/none/c", true, "FILE_NOT_FOUND"},
		{"/none", "/c", true, "FILE_NOT_FOUND"},
		{"/c", "/d", true, "FILE_IS_DIRECTORY"},
		{"/d", "/full", true, "DIRECTORY_NOT_EMPTY"},
		{"/d", "/c", true, "FILE_ALREADY_EXISTS"},
		{"/d", "/d/below", true, "PATH_INVALID"},
		{"/d", "/moved", false, ""},
		{"/link", "/link2", false, ""},
		{"/c", "/c", true, ""},
	} {
		if got := move(dir+tt.from, dir+tt.to, tt.overwrite); got != tt.want {
			t.Errorf("%d %s to %s: %q, want %q", i, tt.from, tt.to, got, tt.want)
		}
	}
	if read(t, dir+"/c") != "a" || read(t, dir+"/moved/x") != "x" {
		t.Error("wrong content")
	}
	if target, err := os.Readlink(dir + "/link2"); err != nil || target != "/etc/passwd" {
		t.Errorf("the link was followed: %q, %v", target, err)
	}
	if got := move("/", dir+"/x", true); got != "PATH_INVALID" {
		t.Errorf("moving the root: %q", got)
	}
	if other, err := os.MkdirTemp("/dev/shm", "sg"); err == nil {
		defer func() { _ = os.RemoveAll(other) }()
		if got := move(dir+"/c", other+"/c", true); got != "FILE_CROSS_DEVICE" {
			t.Errorf("to another file system: %q", got)
		}
	}
	// Moving must not be a way to read what may not be read.
	for _, p := range []*sandboxv1.AccessPolicy{
		{ReadDenyPrefixes: []string{dir + "/moved/x"}}, {WriteDenyPrefixes: []string{dir + "/moved/x"}}, {ReadDenyPrefixes: []string{dir + "/moved"}},
		{WriteAllowPrefixes: []string{dir + "/moved"}},
	} {
		if got := move(dir+"/moved", dir+"/again", false, p); got != "POLICY_DENIED" {
			t.Errorf("%v: %q", p, got)
		}
	}
}

func TestWriteFile(t *testing.T) {
	_, c := start(t, files.Config{})
	dir := t.TempDir()
	for i, tt := range []struct {
		r     *sandboxv1.WriteFileRequest
		limit int64
		want  string
	}{
		{&sandboxv1.WriteFileRequest{Path: "/new/f", Content: []byte("one")}, 0, "true"},
		{&sandboxv1.WriteFileRequest{Path: "/new/f", Content: []byte("two")}, 3, "false"},
		{&sandboxv1.WriteFileRequest{Path: "/new/f", Content: []byte("no"), CreateOnly: true}, 0, "FILE_ALREADY_EXISTS"},
		{&sandboxv1.WriteFileRequest{Path: "/new", Content: []byte("no")}, 0, "FILE_IS_DIRECTORY"},
		{&sandboxv1.WriteFileRequest{Path: "/new/f/g", Content: []byte("no")}, 0, "PATH_INVALID"},
		{&sandboxv1.WriteFileRequest{Path: "/big", Content: []byte("four")}, 3, "FILE_TOO_LARGE"},
		{&sandboxv1.WriteFileRequest{Path: "/x", CreateOnly: true, Mode: ptr(uint32(0o700))}, 0, "true"},
	} {
		tt.r.Path = dir + tt.r.GetPath()
		resp, err := c.WriteFile(called(t.Context(), &agentv1.Limits{MaxFileBytes: tt.limit}), tt.r)
		got := reason(t, err)
		if r := resp; err == nil {
			got = fmt.Sprint(r.GetCreated())
			if r.GetSize() != int64(len(tt.r.GetContent())) || !bytes.Equal(r.GetSha256(), sum(tt.r.GetContent())) || read(t, tt.r.GetPath()) != string(tt.r.GetContent()) {
				t.Errorf("%d: %v", i, r)
			}
		}
		if got != tt.want {
			t.Errorf("%d: %s, want %s", i, got, tt.want)
		}
	}
	if diff := cmp.Diff([]string{"new", "x"}, names(t, dir)); diff != "" {
		t.Errorf("directory (-want +got):\n%s", diff)
	}
}

func TestDiskFull(t *testing.T) {
	dir := tmpfs(t, "1m")
	_, c := start(t, files.Config{})
	write(t, dir+"/f", strings.Repeat("x", 600<<10)+"old")
	_, err := c.WriteFile(t.Context(), &sandboxv1.WriteFileRequest{Path: dir + "/g", Content: make([]byte, 600<<10)})
	if reason(t, err) != "DISK_FULL" {
		t.Errorf("write: %v", err)
	}
	_, err = c.EditFile(t.Context(), &sandboxv1.EditFileRequest{Path: dir + "/f", OldText: []byte("old"), NewText: []byte("new")})
	if reason(t, err) != "DISK_FULL" {
		t.Errorf("edit: %v", err)
	}
	if diff := cmp.Diff([]string{"f"}, names(t, dir)); diff != "" || !strings.HasSuffix(read(t, dir+"/f"), "old") {
		t.Errorf("directory (-want +got):\n%s", diff)
	}
}
