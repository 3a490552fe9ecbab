package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// launch starts a component in a session of its own and writes down who it is. It
// outlives this process.
func (c *cluster) launch(name string, argv []string) error {
	for _, dir := range []string{"log", "run"} {
		if err := os.MkdirAll(c.path(dir), 0o755); err != nil {
			return err
		}
	}
	log, err := os.OpenFile(c.path("log", name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	path := argv[0]
	if kubes[path] != nil {
		path = c.exe
	}
	if path, err = exec.LookPath(path); err != nil {
		return err
	}
	cmd := &exec.Cmd{
		Path: path, Args: argv, Dir: c.dir, Env: environ(),
		Stdout: log, Stderr: log,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	started, err := startTime(cmd.Process.Pid)
	if err != nil {
		return fmt.Errorf("%s ended at once: see %s", name, log.Name())
	}
	who := fmt.Sprintf("%d %s\n", cmd.Process.Pid, started)
	if err := os.WriteFile(c.path("run", name+".pid"), []byte(who), 0o644); err != nil {
		return err
	}
	return cmd.Process.Release()
}

// environ is this process's environment without what would lead a component to
// another cluster, and with the paths of system programs.
func environ() []string {
	var env []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "KUBECONFIG=") && !strings.HasPrefix(entry, "PATH=") {
			env = append(env, entry)
		}
	}
	return append(env, "PATH="+os.Getenv("PATH")+":/usr/local/sbin:/usr/sbin:/sbin")
}

// pid is the component's process, or 0 when it does not run. The time of its start
// tells it from another process that got its number.
func (c *cluster) pid(name string) int {
	data, err := os.ReadFile(c.path("run", name+".pid"))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(data))
	if len(fields) != 2 {
		return 0
	}
	pid, err := strconv.Atoi(fields[0])
	if err != nil {
		return 0
	}
	if started, err := startTime(pid); err != nil || started != fields[1] {
		return 0
	}
	return pid
}

// ended reports whether the component ended by itself, or by somebody else's hand.
func (c *cluster) ended(name string) bool {
	_, err := os.Stat(c.path("run", name+".pid"))
	return err == nil && c.pid(name) == 0
}

// errZombie says that a process has ended and waits for its parent.
var errZombie = errors.New("process has ended")

// startTime is when a living process was started, in ticks since the boot.
func startTime(pid int) (string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	// The name, in parentheses, may hold anything; the fields after it do not.
	_, rest, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 20 {
		return "", fs.ErrInvalid
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return "", errZombie
	}
	return fields[19], nil
}

// kill sends the signal and returns when the process is gone. After ten seconds it
// sends SIGKILL. Nothing to kill is no error. What was killed stays down until it is
// asked for.
func (c *cluster) kill(name string, signal syscall.Signal) error {
	pid := c.pid(name)
	fd := -1
	if pid != 0 {
		var err error
		if fd, err = unix.PidfdOpen(pid, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	// Once it is open, the descriptor is the process whatever becomes of its number.
	same := fd >= 0 && c.pid(name) == pid
	if fd >= 0 {
		defer unix.Close(fd)
	}
	if err := os.Remove(c.path("run", name+".pid")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if !same {
		return nil
	}
	for _, signal := range []syscall.Signal{signal, syscall.SIGKILL} {
		if err := unix.PidfdSendSignal(fd, signal, nil, 0); err != nil {
			if errors.Is(err, unix.ESRCH) {
				return nil
			}
			return err
		}
		if waitEnd(fd, 10*time.Second) {
			return nil
		}
	}
	return fmt.Errorf("%s (%d) does not end", name, pid)
}

// waitEnd waits for the end of a process and reports whether it came.
func waitEnd(fd int, limit time.Duration) bool {
	deadline := time.Now().Add(limit)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return false
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false
		}
		if n > 0 {
			return true
		}
	}
}
