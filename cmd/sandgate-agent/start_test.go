package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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

// inNetwork runs do on a thread with a network namespace of its own, in which the
// proxy's port is free. Processes that it starts are there as well.
func inNetwork(t *testing.T, do func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for a network namespace")
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // it ends with the goroutine: no other may have its network
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = loopbackUp()
		}
		if err == nil {
			do()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}

// Start prints what the agent was started with, also if it ran already.
func TestStartPrintsTheAgentsProxy(t *testing.T) {
	for _, c := range []struct {
		first, again []string
		want         string
	}{
		{[]string{"--egress"}, nil, "egress\n"}, {nil, []string{"--egress", "--redirect"}, ""},
		{[]string{"--egress", "--redirect"}, nil, "egress\nredirect\n"},
	} {
		dir := t.TempDir()
		inNetwork(t, func() {
			pid, out, err := startedAgent(t, dir, "one", c.first...)
			if err != nil || out != c.want {
				t.Errorf("start %s: %v: %q, want %q", c.first, err, out, c.want)
			}
			if again, out, err := startedAgent(t, dir, "one", c.again...); err != nil || again != pid || out != c.want {
				t.Errorf("start %s after %s: process %d after %d, %v: %q, want %q", c.again, c.first, again, pid, err, out, c.want)
			}
			if conn, err := net.Dial("tcp", "127.0.0.1:3128"); err == nil != (c.want != "") {
				t.Errorf("start %s: the proxy: %v", c.first, err)
			} else if err == nil {
				_ = conn.Close()
			}
		})
		if out, err := program("stop", "--dir", dir).CombinedOutput(); err != nil {
			t.Errorf("stop: %v: %s", err, out)
		}
	}
}

// An agent whose proxy cannot listen ends at once, and its start reports why.
func TestStartReportsThatTheProxysPortIsTaken(t *testing.T) {
	inNetwork(t, func() {
		taken, err := net.Listen("tcp", "127.0.0.1:3128")
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = taken.Close() }()
		if _, out, err := startedAgent(t, t.TempDir(), "one", "--egress"); err == nil || !strings.Contains(out, "address already in use") {
			t.Errorf("%v: %s", err, out)
		}
	})
}

// The pid file of an agent without a TCP address, and one of an earlier version.
func TestReadPidFile(t *testing.T) {
	for text, want := range map[string]pidRecord{
		"12 one 3 \n":                 {pid: 12, incarnation: "one", generation: 3},
		"12 one 3 :8888\n":            {pid: 12, incarnation: "one", generation: 3, tcp: ":8888"},
		"12 one 3  egress\n":          {pid: 12, incarnation: "one", generation: 3, egress: true},
		"12 one 3 :8888 egress\n":     {pid: 12, incarnation: "one", generation: 3, tcp: ":8888", egress: true},
		"12 one 3  redirect egress\n": {pid: 12, incarnation: "one", generation: 3, egress: true, redirect: true},
		"12 one 3 :1 redirect\n":      {pid: 12, incarnation: "one", generation: 3, tcp: ":1", redirect: true},
		"12 egress 3\n":               {pid: 12, incarnation: "egress", generation: 3},
		"12 one\n":                    {},
		"1 one 3 :8888 egress\n":      {},
		"what somebody else wrote\n":  {},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(pidFile(dir), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := readPidFile(dir); err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
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
