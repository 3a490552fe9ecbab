package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestServeRunsTheSandboxsOwnCommand: the sandbox's own command runs beside the agent. If it can't be
// started, the agent ends and prints the reason.
func TestServeRunsTheSandboxsOwnCommand(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "said")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	listen := "unix://" + filepath.Join(dir, "a.sock")
	serve := program("serve", "--listen", listen, "--workdir", dir, "--", "sh", "-c", `echo "$0 runs in $(pwd)" >said`, "it")
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	said, err := os.ReadFile(fifo)
	if err != nil || string(said) != "it runs in "+dir+"\n" {
		t.Errorf("it said %q, %v", said, err)
	}
	if err := serve.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := serve.Wait(); err != nil {
		t.Errorf("serve ended with %v", err)
	}
	out, err := program("serve", "--listen", listen, "--workdir", dir, "--", "/no/such/program").CombinedOutput()
	if err == nil || !strings.Contains(string(out), `start the sandbox's command "/no/such/program"`) {
		t.Errorf("a missing program: %v, %s", err, out)
	}
}
