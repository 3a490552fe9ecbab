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

	"github.com/sandgate/sandgate/agent/spawn"
)

const (
	// startWait is how long start waits for the agent that it started.
	startWait = 10 * time.Second
	// stopWait is how long a replaced agent may take to end before it is killed.
	stopWait = 5 * time.Second
	// logTail is how much of the agent's log start reports.
	logTail = 2 << 10
)

// start starts an agent in the background, for containers whose first process is not the
// agent, and returns when it listens on DIR/INCARNATION.sock. If it listens already, start
// does nothing, even if two starts run at once. start first ends an agent of an earlier
// generation in DIR. It prints a line "tcp ADDRESS" if the agent listens on TCP, and a
// line "egress" if it has its proxy, "redirect" if it redirects connects: an agent that
// ran already may do none of these.
func start(args []string, stdin io.Reader, stdout io.Writer) error {
	flags := flag.NewFlagSet("start", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	dir := flags.String("dir", "", "")
	incarnation := flags.String("incarnation", "", "")
	workdir := flags.String("workdir", "", "")
	generation := flags.Int("generation", 0, "")
	sum := flags.String("sha256", "", "")
	tcp := flags.String("listen-tcp", "", "")
	egress := flags.Bool("egress", false, "")
	redirect := flags.Bool("redirect", false, "")
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
		return printFeatures(*dir, *incarnation, stdout)
	}
	if err := endPredecessor(*dir, *generation); err != nil {
		return err
	}
	one := launched{
		dir: *dir, incarnation: *incarnation, generation: *generation, workdir: *workdir, socket: socket,
		tcp: *tcp, secret: secret, egress: *egress, redirect: *redirect,
	}
	if err := one.launch(); err != nil {
		return err
	}
	return printFeatures(*dir, *incarnation, stdout)
}

// printFeatures prints what the agent was started with.
func printFeatures(dir, incarnation string, stdout io.Writer) error {
	n, err := readPidFile(dir)
	if err != nil || n.incarnation != incarnation {
		return err
	}
	if n.tcp != "" {
		_, err = fmt.Fprintln(stdout, "tcp", n.tcp)
	}
	for _, feature := range []struct {
		word string
		has  bool
	}{{egressWord, n.egress}, {redirectWord, n.redirect}} {
		if feature.has {
			_, printErr := fmt.Fprintln(stdout, feature.word)
			err = errors.Join(err, printErr)
		}
	}
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

// launched is an agent to start.
type launched struct {
	dir, incarnation, workdir, socket string
	generation                        int
	tcp, secret                       string // TCP address to listen on, and its secret
	egress                            bool   // with the proxy and the name server
	redirect                          bool   // with redirected connects
}

// launch starts the agent in a session of its own, without this process's descriptors.
func (l *launched) launch() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	agentLog, err := os.Create(filepath.Join(l.dir, "agent.log"))
	if err != nil {
		return err
	}
	defer func() { _ = agentLog.Close() }()
	args := []string{"serve", "--listen", "unix://" + l.socket, "--incarnation", l.incarnation, "--state-dir", l.dir}
	if l.workdir != "" {
		args = append(args, "--workdir", l.workdir)
	}
	if l.tcp != "" {
		args = append(args, "--listen-tcp", l.tcp)
	}
	if l.egress {
		args = append(args, "--egress")
	}
	if l.redirect {
		args = append(args, "--redirect")
	}
	cmd := exec.Command(self, args...)
	if l.tcp != "" {
		cmd.Env = append(os.Environ(), secretVariable+"="+l.secret)
	}
	cmd.Stderr = agentLog
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	if l.redirect {
		// What the kernel does for this process it does for the agent, which logs why not.
		_, err := spawn.NotifyConnects()
		l.redirect = err == nil
	}
	if err := l.writePidFile(cmd.Process.Pid); err != nil {
		return errors.Join(err, cmd.Process.Kill())
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for deadline := time.Now().Add(startWait); ; time.Sleep(connectRetry) {
		select {
		case err := <-ended:
			return fmt.Errorf("the agent ended at once: %w: %s", err, tail(agentLog.Name()))
		default:
		}
		if listening(l.socket) {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("the agent does not listen after %v: %s", startWait, tail(agentLog.Name())), cmd.Process.Kill())
		}
	}
}

func pidFile(dir string) string { return filepath.Join(dir, "agent.pid") }

// pidRecord is the content of the pid file of a directory's agent.
type pidRecord struct {
	pid, generation int // pid 0: no agent
	incarnation     string
	tcp             string
	egress          bool
	redirect        bool
}

// The last words of the pid file of an agent with its proxy, and with redirected
// connects.
const (
	egressWord   = "egress"
	redirectWord = "redirect"
)

func (l *launched) writePidFile(pid int) error {
	text := fmt.Sprintf("%d %s %d %s", pid, l.incarnation, l.generation, l.tcp)
	if l.redirect {
		text += " " + redirectWord
	}
	if l.egress {
		text += " " + egressWord
	}
	return os.WriteFile(pidFile(l.dir), []byte(text+"\n"), 0o600)
}

func readPidFile(dir string) (pidRecord, error) {
	text, err := os.ReadFile(pidFile(dir))
	if errors.Is(err, os.ErrNotExist) {
		return pidRecord{}, nil
	}
	if err != nil {
		return pidRecord{}, err
	}
	var n pidRecord
	words := strings.Fields(string(text))
	// What follows the generation may be missing.
	if last := len(words) - 1; last >= 3 && words[last] == egressWord {
		n.egress, words = true, words[:last]
	}
	if last := len(words) - 1; last >= 3 && words[last] == redirectWord {
		n.redirect, words = true, words[:last]
	}
	got, _ := fmt.Sscan(strings.Join(words, " "), &n.pid, &n.incarnation, &n.generation, &n.tcp)
	if got < 3 || n.pid <= 1 {
		return pidRecord{}, nil
	}
	return n, nil
}

// endPredecessor ends the agent that was started in the directory before, if any. Another
// process may have its pid, so its arguments must match too. It fails if the running agent
// has a later generation.
func endPredecessor(dir string, generation int) error {
	n, err := readPidFile(dir)
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

// verifySelf checks the hash of this program's file.
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

// plainName reports whether an incarnation is safe as part of a file name.
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
