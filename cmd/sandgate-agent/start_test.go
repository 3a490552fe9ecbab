package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// startedAgent runs "start" and returns the pid of the agent that it left.
func startedAgent(t *testing.T, dir, incarnation string, args ...string) (pid int, out string, err error) {
	t.Helper()
	cmd := program(append([]string{"start", "--dir", dir, "--incarnation", incarnation}, args...)...)
	// What start leaves behind must not die with the test's thread.
	cmd.SysProcAttr = nil
	said, err := cmd.CombinedOutput()
	note, _ := os.ReadFile(pidFile(dir))
	_, _ = fmt.Sscan(string(note), &pid)
	return pid, string(said), err
}

func running(pid int) bool {
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && bytes.Contains(cmdline, []byte("serve"))
}

func TestStartAndStop(t *testing.T) {
	dir := t.TempDir()
	end := func() {
		if out, err := program("stop", "--dir", dir).CombinedOutput(); err != nil {
			t.Errorf("stop: %v: %s", err, out)
		}
	}
	t.Cleanup(end)
	first, out, err := startedAgent(t, dir, "one")
	if err != nil || !running(first) || !listening(filepath.Join(dir, "one.sock")) {
		t.Fatalf("start: %v: %s", err, out)
	}
	if again, out, err := startedAgent(t, dir, "one"); err != nil || again != first {
		t.Errorf("started again it is %d after %d: %v: %s", again, first, err, out)
	}
	second, out, err := startedAgent(t, dir, "two", "--generation", "1")
	if err != nil || second == first || running(first) || !running(second) {
		t.Errorf("the next generation: %v: %s", err, out)
	}
	if _, _, err := startedAgent(t, dir, "one"); err == nil || !running(second) {
		t.Error("an earlier generation came after a later one")
	}
	end()
	if running(second) || listening(filepath.Join(dir, "two.sock")) {
		t.Error("it was stopped, and runs")
	}
}

func TestStartRefuses(t *testing.T) {
	for _, args := range [][]string{
		{"start"},
		{"start", "--dir", "relative", "--incarnation", "x"},
		{"start", "--dir", "/tmp", "--incarnation", "../x"},
		{"start", "--dir", t.TempDir(), "--incarnation", "x", "--sha256", "00"},
		{"start", "--dir", "/no/such/directory", "--incarnation", "x"},
		{"stop", "--dir", "relative"},
		{"install", "relative"},
		{"install", "/no/such/directory"},
	} {
		if out, err := program(args...).CombinedOutput(); err == nil {
			t.Errorf("%q succeeded: %s", args, out)
		}
	}
}

func TestInstall(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		if out, err := program("install", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "sandgate-agent" {
		t.Fatalf("%v, %v", entries, err)
	}
	info, err := entries[0].Info()
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}
