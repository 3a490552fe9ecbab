package agent

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// An agent that is killed during uploads leaves no parts behind, and the old file
// unchanged.
func TestKilledAgentLeavesNoParts(t *testing.T) {
	h := start(t, setup{})
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "old"), []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	const size = 2 << 20
	for _, head := range []*sandboxv1.UploadHeader{
		{Path: filepath.Join(dir, "plain")}, {Path: filepath.Join(dir, "part"), UploadId: "u"}, {Path: filepath.Join(dir, "old")},
	} {
		up, err := h.Upload(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		messages := []*sandboxv1.UploadRequest{
			{Payload: &sandboxv1.UploadRequest_Header{Header: head}},
		}
		for range size >> 20 {
			messages = append(messages, &sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Chunk{Chunk: make([]byte, 1<<20)}})
		}
		for _, m := range messages {
			if err := up.Send(m); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually(t, "three parts are written to", func() bool {
		written := 0
		fds, _ := filepath.Glob("/proc/" + strconv.Itoa(h.pid) + "/fd/*")
		for _, fd := range fds {
			if target, err := os.Readlink(fd); err == nil && strings.HasPrefix(target, dir+"/") {
				if info, err := os.Stat(fd); err == nil && info.Size() > 0 {
					written++
				}
			}
		}
		return written == 3
	})
	if err := unix.Kill(h.pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the agent is gone", func() bool {
		fds, _ := filepath.Glob("/proc/" + strconv.Itoa(h.pid) + "/fd/*")
		return len(fds) == 0
	})
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 || entries[0].Name() != "old" {
		t.Errorf("left behind: %v", entries)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "old")); err != nil || string(b) != "old" {
		t.Errorf("%q, %v", b, err)
	}
}
