package e2e

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// smallDisk mounts a file system of its own.
func smallDisk(t *testing.T, bytes int64) string {
	t.Helper()
	image, dir := filepath.Join(t.TempDir(), "small.ext4"), filepath.Join(t.TempDir(), "small")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(image, nil, 0o600), os.Truncate(image, bytes)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-F", "-m", "0", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fillDisk leaves no free block.
func fillDisk(t *testing.T, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size > 0; {
		if _, err = f.Write(bytes.Repeat([]byte{1}, size)); err != nil {
			size /= 2
		}
	}
	if err := f.Sync(); err != nil && !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
}

// The state directory's disk is full to the last block, with the audit log on it. Running
// commands, new ones, files, listings and deletions go on; what must be written ends with
// the cause. The metrics show it, and everything works when there is space again.
func TestDiskIsFull(t *testing.T) {
	need(t)
	t.Parallel()
	dir := smallDisk(t, 160<<20)
	s, err := serve(dir, append(watched(dir), "--local-min-free=-1", "--local-disk-overcommit=-1")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.must(t, "rm", "--all", "--yes")
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	id, other := s.create(t), s.create(t)
	metrics, client := s.scraper(), s.stubs(t)
	counted := make(chan ran, 1)
	go func() { counted <- s.run("", "exec", id, "-c", "touch /workspace/begun; "+counting) }()
	output(t, client, id, "until [ -e /workspace/begun ]; do sleep 0.1; done")

	free := fillDisk(t, dir)
	if got := output(t, client, id, "echo on"); got != "on\n" {
		t.Errorf("a command: %q", got)
	}
	for what, call := range map[string]func() error{
		"a file": func() error {
			_, err := client.StatFile(t.Context(), &sandboxv1.StatFileRequest{SandboxId: id, Path: "/workspace/begun"})
			return err
		},
		"get": func() error {
			_, err := client.GetSandbox(t.Context(), &sandboxv1.GetSandboxRequest{SandboxId: id})
			return err
		},
		"list": func() error {
			_, err := client.ListSandboxes(t.Context(), &sandboxv1.ListSandboxesRequest{})
			return err
		},
	} {
		if err := call(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err = client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "more"})
	wantError(t, "create", err, codes.ResourceExhausted, "QUOTA_EXCEEDED")
	long := map[string]string{"a": strings.Repeat("b", 60)}
	_, err = client.UpdateSandbox(t.Context(), &sandboxv1.UpdateSandboxRequest{SandboxId: id, SetLabels: long})
	wantError(t, "update", err, codes.ResourceExhausted, "QUOTA_EXCEEDED")
	metrics.await(t, "sandgate_audit_failures_total", 1)
	eventually(t, time.Minute, "a provider that does not work", func() bool {
		code, _, err := metrics.page("/readyz")
		return err == nil && code == http.StatusServiceUnavailable &&
			metrics.value(t, "sandgate_provider_up") == 0 && metrics.value(t, "sandgate_state_free_bytes") < 1<<20
	})
	if _, err := client.DeleteSandbox(t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: other}); err != nil {
		t.Errorf("delete: %v", err)
	}

	free()
	s.must(t, "create", "more")
	metrics.await(t, "sandgate_provider_up", 1)
	if log := s.log.String(); !strings.Contains(log, "the audit log can be written again") {
		t.Errorf("the log: %s", log)
	}
	s.must(t, "exec", id, "--", "touch", "/workspace/end")
	got := <-counted
	if got.code != 7 {
		t.Errorf("the command that ran meanwhile: %+v", got)
	}
	checkCounted(t, got.stdout)
}
