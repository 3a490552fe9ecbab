package files_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/files"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

func globFiles(t testing.TB, c agentv1.AgentServiceClient, r *sandboxv1.GlobFilesRequest, policies ...*sandboxv1.AccessPolicy) (*sandboxv1.GlobFilesResponse, error) {
	t.Helper()
	return c.GlobFiles(called(t.Context(), nil, policies...), r)
}

func found(dir string, resp *sandboxv1.GlobFilesResponse) []string {
	out := []string{}
	for _, f := range resp.GetFiles() {
		out = append(out, strings.TrimPrefix(f.GetPath(), dir))
	}
	return out
}

func TestGlob(t *testing.T) {
	_, c := start(t, files.Config{})
	dir := t.TempDir()
	for _, path := range []string{"/a.py", "/a/b.py", "/a-b/c.py", "/a/.hid/d.py", "/.e.py", "/z/y/x.js"} {
		write(t, dir+path, "x")
	}
	for name, target := range map[string]string{"/in": "a.py", "/out.py": "/etc/passwd", "/dead.py": "none", "/dirlink": "a", "/abs.py": dir + "/a/b.py"} {
		if err := os.Symlink(target, dir+name); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(dir+"/fifo.py", 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		r    *sandboxv1.GlobFilesRequest
		want []string
	}{
		{&sandboxv1.GlobFilesRequest{Pattern: "*.py"}, []string{"/a-b/c.py", "/a.py", "/a/.hid/d.py", "/a/b.py"}},
		{&sandboxv1.GlobFilesRequest{Pattern: "*.py", BarePatternShallow: true}, []string{"/a.py"}},
		{&sandboxv1.GlobFilesRequest{Pattern: "**/*.py"}, []string{"/a-b/c.py", "/a.py", "/a/b.py"}},
		{&sandboxv1.GlobFilesRequest{Pattern: ".*.py"}, []string{"/.e.py"}},
		{&sandboxv1.GlobFilesRequest{Pattern: "*", BarePatternShallow: true, IncludeDirectories: true}, []string{"/a", "/a-b", "/a.py", "/z"}},
		{&sandboxv1.GlobFilesRequest{Pattern: "*.py", IncludeLinks: true}, []string{"/a-b/c.py", "/a.py", "/a/.hid/d.py", "/a/b.py", "/abs.py"}},
		{&sandboxv1.GlobFilesRequest{Pattern: "z/**"}, []string{"/z/y/x.js"}},
		{&sandboxv1.GlobFilesRequest{Pattern: "z/**", IncludeDirectories: true}, []string{"/z/y", "/z/y/x.js"}},
		{&sandboxv1.GlobFilesRequest{Pattern: "{a,z}/*/", IncludeDirectories: true}, []string{"/z/y"}},
		{&sandboxv1.GlobFilesRequest{Pattern: "*.rb"}, []string{}},
		{&sandboxv1.GlobFilesRequest{Pattern: "*.js", Path: dir + "/z/./"}, []string{"/z/./y/x.js"}},
		{&sandboxv1.GlobFilesRequest{Pattern: "b.py", Path: dir + "/dirlink"}, []string{"/dirlink/b.py"}},
	}
	for _, tt := range tests {
		if tt.r.GetPath() == "" {
			tt.r.Path = dir
		}
		resp, err := globFiles(t, c, tt.r)
		if err != nil || resp.GetTruncated() {
			t.Errorf("%v: %v, %v", tt.r, err, resp.GetTruncationReason())
		}
		if diff := cmp.Diff(tt.want, found(dir, resp)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", tt.r, diff)
		}
	}
	for max, cut := range map[int32]bool{1: true, 3: true, 4: false} {
		resp, err := globFiles(t, c, &sandboxv1.GlobFilesRequest{Pattern: "*.py", Path: dir, MaxResults: max})
		if err != nil || resp.GetTruncated() != cut || !cmp.Equal(found(dir, resp), tests[0].want[:max]) {
			t.Errorf("at most %d: %v, %v", max, resp, err)
		}
	}
	for _, tt := range []struct {
		want string
		r    *sandboxv1.GlobFilesRequest
	}{
		{"REQUEST_INVALID", &sandboxv1.GlobFilesRequest{Path: dir}},
		{"REQUEST_INVALID", &sandboxv1.GlobFilesRequest{Path: dir, Pattern: "*", MaxResults: -1}},
		{"PATTERN_INVALID", &sandboxv1.GlobFilesRequest{Path: dir, Pattern: "a/../b"}},
		{"PATTERN_INVALID", &sandboxv1.GlobFilesRequest{Path: dir, Pattern: strings.Repeat("{a,b}", 12)}},
		{"FILE_NOT_FOUND", &sandboxv1.GlobFilesRequest{Path: dir + "/none", Pattern: "*"}},
		{"FILE_NOT_DIRECTORY", &sandboxv1.GlobFilesRequest{Path: dir + "/a.py", Pattern: "*"}},
	} {
		if _, err := globFiles(t, c, tt.r); reason(t, err) != tt.want {
			t.Errorf("%v: %v, want %s", tt.r, err, tt.want)
		}
	}
	resp, err := globFiles(t, c, &sandboxv1.GlobFilesRequest{Pattern: "null", Path: "/"})
	if err != nil || slices.Contains(found("", resp), "/dev/null") {
		t.Errorf("the walk at / enters /dev: %v, %v", found("", resp), err)
	}
}
