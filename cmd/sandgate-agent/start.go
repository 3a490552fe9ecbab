package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// startWait bounds how long start waits for the agent that it started.
	startWait = 10 * time.Second
	// stopWait is how long an agent that is replaced has to end by itself.
	stopWait = 5 * time.Second
	// logTail is how much of the agent's complaints start passes on.
	logTail = 2 << 10
)

// start makes an agent that outlives it, for containers whose first process is
// not ours, and returns when that agent listens at DIR/INCARNATION.sock. Where
// one does so already it does nothing, also when two are started at once; an
// agent of an earlier generation that was started here is ended first. Where the
// agent that then runs listens on TCP, start says so: one that was there already
// may not.
func start(args []string, stdin io.Reader, stdout io.Writer) error {
	flags := flag.NewFlagSet("start", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	dir := flags.String("dir", "", "")
	incarnation := flags.String("incarnation", "", "")
	workdir := flags.String("workdir", "", "")
	generation := flags.Int("generation", 0, "")
	sum := flags.String("sha256", "", "")
	tcp := flags.String("listen-tcp", "", "")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 || !filepath.IsAbs(*dir) || !plainName(*incarnation) {
		return errors.Join(errUsage, err)
	}
	if *sum != "" {
		if err := verifySelf(*sum); err != nil {
			return err
		}
	}
	secret := ""
	if *tcp != "" {
		conceal()
		var err error
		if secret, err = readSecret(stdin, startWait); err != nil {
			return err
		}
	}
	lock, err := os.OpenFile(filepath.Join(*dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	socket := filepath.Join(*dir, *incarnation+".sock")
	if listening(socket) {
		return tellTCP(*dir, *incarnation, stdout)
	}
	if err := endPredecessor(*dir, *generation); err != nil {
		return err
	}
	one := launched{
		dir: *dir, incarnation: *incarnation, generation: *generation, workdir: *workdir, socket: socket,
		tcp: *tcp, secret: secret,
	}
	if err := one.launch(); err != nil {
		return err
	}
	return tellTCP(*dir, *incarnation, stdout)
}

// tellTCP says where the agent listens on TCP, if it does.
func tellTCP(dir, incarnation string, stdout io.Writer) error {
	n, err := readNote(dir)
	if err != nil || n.tcp == "" || n.incarnation != incarnation {
		return err
	}
	_, err = fmt.Fprintln(stdout, "tcp", n.tcp)
	return err
}

// stop ends the agent that was started in a directory, and its commands.
func stop(args []string) error {
	flags := flag.NewFlagSet("stop", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	dir := flags.String("dir", "", "")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 || !filepath.IsAbs(*dir) {
		return errors.Join(errUsage, err)
	}
	return endPredecessor(*dir, math.MaxInt)
}

// launched is an agent that is to be started.
type launched struct {
	dir, incarnation, workdir, socket string
	generation                        int
	tcp, secret                       string // where it listens on TCP, and for whom
}

// launch starts the agent in a session of its own, with nothing of ours open.
func (l *launched) launch() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	complaints, err := os.Create(filepath.Join(l.dir, "agent.log"))
	if err != nil {
		return err
	}
	defer func() { _ = complaints.Close() }()
	args := []string{"serve", "--listen", "unix://" + l.socket, "--incarnation", l.incarnation, "--state-dir", l.dir}
	if l.workdir != "" {
		args = append(args, "--workdir", l.workdir)
	}
	if l.tcp != "" {
		args = append(args, "--listen-tcp", l.tcp)
	}
	cmd := exec.Command(self, args...)
	if l.tcp != "" {
		cmd.Env = append(os.Environ(), secretVariable+"="+l.secret)
	}
	cmd.Stderr = complaints
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := l.note(cmd.Process.Pid); err != nil {
		return errors.Join(err, cmd.Process.Kill())
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for deadline := time.Now().Add(startWait); ; time.Sleep(connectRetry) {
		select {
		case err := <-ended:
			return fmt.Errorf("the agent ended at once: %w: %s", err, tail(complaints.Name()))
		default:
		}
		if listening(l.socket) {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("the agent does not listen after %v: %s", startWait, tail(complaints.Name())), cmd.Process.Kill())
		}
	}
}

func pidFile(dir string) string { return filepath.Join(dir, "agent.pid") }

// note is what is written of the agent that runs in a directory.
type note struct {
	pid, generation int // pid 0: there is none
	incarnation     string
	tcp             string
}

func (l *launched) note(pid int) error {
	text := fmt.Sprintf("%d %s %d %s\n", pid, l.incarnation, l.generation, l.tcp)
	return os.WriteFile(pidFile(l.dir), []byte(text), 0o600)
}

func readNote(dir string) (note, error) {
	text, err := os.ReadFile(pidFile(dir))
	if errors.Is(err, os.ErrNotExist) {
		return note{}, nil
	}
	if err != nil {
		return note{}, err
	}
	var n note
	// The last one may be missing.
	got, _ := fmt.Sscan(string(text), &n.pid, &n.incarnation, &n.generation, &n.tcp)
	if got < 3 || n.pid <= 1 {
		return note{}, nil
	}
	return n, nil
}

// endPredecessor ends the agent that was started here before, if there is one.
// A pid alone may have been used again, so its arguments must fit as well. Who
// comes too late for a generation must not end a later one.
func endPredecessor(dir string, generation int) error {
	n, err := readNote(dir)
	if err != nil || n.pid == 0 {
		return err
	}
	alive := func() bool {
		cmdline, err := os.ReadFile("/proc/" + strconv.Itoa(n.pid) + "/cmdline")
		return err == nil && bytes.Contains(cmdline, []byte("\x00--incarnation\x00"+n.incarnation+"\x00"))
	}
	if !alive() {
		return nil
	}
	if n.generation > generation {
		return fmt.Errorf("an agent of generation %d runs here, later than %d", n.generation, generation)
	}
	if err := unix.Kill(n.pid, unix.SIGTERM); err != nil {
		return fmt.Errorf("end the agent before: %w", err)
	}
	for deadline := time.Now().Add(stopWait); alive(); time.Sleep(connectRetry) {
		if time.Now().After(deadline) {
			return unix.Kill(n.pid, unix.SIGKILL)
		}
	}
	_ = os.Remove(filepath.Join(dir, n.incarnation+".sock"))
	_ = os.Remove(filepath.Join(dir, n.incarnation+".sock"+handoverSuffix))
	return nil
}

func listening(socket string) bool {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// verifySelf makes sure that this program arrived whole.
func verifySelf(want string) error {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer func() { _ = self.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, self); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		return fmt.Errorf("this program has the hash %s, not %s", got, want)
	}
	return nil
}

// plainName keeps an incarnation from being more than a file's name.
func plainName(s string) bool {
	return s != "" && len(s) <= 64 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

func tail(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	if len(data) > logTail {
		data = data[len(data)-logTail:]
	}
	return strings.TrimSpace(string(data))
}
