package build

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A buildctl that ignores its interrupt ends with its build, before a client kills what it
// has asked to end, and so it does if the build's program is killed.
func TestBuildctlEndsWithItsBuild(t *testing.T) {
	t.Parallel()
	if dir := os.Getenv("SANDGATE_TEST_BUILD"); dir != "" {
		ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGTERM)
		defer stop()
		o := BuildKitOptions{Options: Options{Dir: filepath.Join(dir, "context"), StateDir: dir}, Address: "tcp://127.0.0.1:1", Save: dir}
		if _, err := BuildKit(ctx, o); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		return
	}
	for _, end := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(end.String(), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			writeFiles(t, dir, map[string]string{"context/Dockerfile": "FROM scratch\n", "temporary/": "", "bin/buildctl": `#!/bin/sh
trap '' INT
exec 3>"$SANDGATE_TEST_BUILD/held"
echo begun >&3
exec sleep 600
`})
			held := filepath.Join(dir, "held")
			if err := errors.Join(os.Chmod(filepath.Join(dir, "bin", "buildctl"), 0o700), syscall.Mkfifo(held, 0o600)); err != nil {
				t.Fatal(err)
			}
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			program := exec.CommandContext(t.Context(), self, "-test.run", "^TestBuildctlEndsWithItsBuild$")
			program.Env = append(os.Environ(), "SANDGATE_TEST_BUILD="+dir, "TMPDIR="+filepath.Join(dir, "temporary"),
				"PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
			if err := program.Start(); err != nil {
				t.Fatal(err)
			}
			f, err := os.Open(held)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			running := bufio.NewReader(f)
			if line, err := running.ReadString('\n'); line != "begun\n" {
				t.Fatal(line, err)
			}
			if err := program.Process.Signal(end); err != nil {
				t.Fatal(err)
			}
			kill := time.AfterFunc(10*time.Second, func() { _ = program.Process.Kill() }) // as the clients do
			defer kill.Stop()
			if err := program.Wait(); (err == nil) != (end == syscall.SIGTERM) {
				t.Errorf("the program: %v", err)
			}
			if err := f.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if _, err := running.WriteTo(io.Discard); err != nil { // until buildctl has ended
				t.Errorf("buildctl: %v", err)
			}
			if left, err := filepath.Glob(filepath.Join(dir, "temporary", "*")); end == syscall.SIGTERM && len(left) > 0 {
				t.Errorf("files are left: %v, %v", left, err)
			}
		})
	}
}
