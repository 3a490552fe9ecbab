// Package e2e runs the real program against the real program: bin/sandgate as
// command line and as server, with sandboxes of the local provider.
package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// shared is a server that most tests use: one start for all of them.
var shared *server

func TestMain(m *testing.M) {
	os.Exit(func() int {
		if reason() != "" {
			return m.Run()
		}
		dir, err := os.MkdirTemp("", "sandgate-e2e-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if shared, err = serve(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		code := m.Run()
		if err := shared.stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		return code
	}())
}

// reason is why these tests cannot run here; empty: they can.
func reason() string {
	if _, err := exec.LookPath("runc"); err != nil || os.Geteuid() != 0 {
		return "needs root and runc"
	}
	return ""
}

func need(t *testing.T) {
	t.Helper()
	if r := reason(); r != "" {
		t.Skip(r)
	}
}

// binary is the program under test: SANDGATE_BIN, else bin/sandgate.
func binary() string {
	if path := os.Getenv("SANDGATE_BIN"); path != "" {
		return path
	}
	path, _ := filepath.Abs("../../bin/sandgate")
	return path
}

// server is one process of "sandgate serve".
type server struct {
	dir, address string
	program      string // empty: binary()
	args         []string
	cmd          *exec.Cmd
	log          *record
}

// record keeps what a server says.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

// serve starts a server whose state is in a directory, with more flags.
func serve(dir string, args ...string) (*server, error) {
	s := &server{dir: dir, address: "unix://" + filepath.Join(dir, "s.sock"), args: args, log: &record{}}
	return s, s.start()
}

// start runs the server and waits for the line that says that it serves.
func (s *server) start() error {
	args := append([]string{
		"serve", "--listen", s.address, "--state-dir", filepath.Join(s.dir, "state"), "--local-cgroup", "/sandgate-e2e",
	}, s.args...)
	program := s.program
	if program == "" {
		program = binary()
	}
	s.cmd = exec.Command(program, args...)
	pipe, err := s.cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("start %s (make build makes it): %w", program, err)
	}
	ready := make(chan bool, 1)
	go func() {
		lines := bufio.NewReader(io.TeeReader(pipe, s.log))
		for {
			line, err := lines.ReadString('\n')
			if strings.Contains(line, s.address) {
				ready <- true
				break
			}
			if err != nil {
				ready <- false
				return
			}
		}
		_, _ = io.Copy(s.log, lines)
	}()
	select {
	case ok := <-ready:
		if ok {
			return nil
		}
	case <-time.After(30 * time.Second):
	}
	_ = s.kill()
	return fmt.Errorf("the server does not serve: %s", s.log)
}

// kill ends the server at once.
func (s *server) kill() error {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	return nil
}

// stop deletes all sandboxes, ends the server in order, and removes its state.
func (s *server) stop() error {
	left := s.run("", "rm", "--all", "--yes")
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	err := s.cmd.Wait()
	if left.code != 0 {
		err = errors.Join(err, errors.New(left.stderr))
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// ran is what one run of the program left.
type ran struct {
	code           int
	stdout, stderr string
}

// command makes a run of the program against the server.
func (s *server) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, binary(), args...)
	cmd.Env = append(os.Environ(), "SANDGATE_ADDRESS="+s.address, "SANDGATE_TOKEN=")
	return cmd
}

// run runs the program to its end.
func (s *server) run(stdin string, args ...string) ran {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := s.command(ctx, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	_ = cmd.Run()
	return ran{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// must runs the program and wants it to succeed.
func (s *server) must(t *testing.T, args ...string) string {
	t.Helper()
	r := s.run("", args...)
	if r.code != 0 {
		t.Fatalf("sandgate %v: exit code %d, %s", args, r.code, r.stderr)
	}
	return strings.TrimSpace(r.stdout)
}

// create makes a sandbox for one test.
func (s *server) create(t *testing.T, args ...string) string {
	t.Helper()
	id := s.must(t, append([]string{"create"}, args...)...)
	t.Cleanup(func() { s.run("", "rm", "--force", id) })
	return id
}

// counting counts in a line each tenth of a second, until /workspace/end is
// there; its exit code is 7.
const counting = "i=0; until [ -e /workspace/end ]; do i=$((i+1)); echo $i; sleep 0.1; done; exit 7"

// checkCounted wants all the lines that counting has printed, of which there
// are some.
func checkCounted(t *testing.T, out string) {
	t.Helper()
	n := 0
	for line := range strings.Lines(out) {
		if n++; line != fmt.Sprintln(n) {
			t.Fatalf("line %d is %q of %q", n, line, out)
		}
	}
	if n == 0 {
		t.Error("nothing was printed")
	}
}

// eventually waits until f holds.
func eventually(t *testing.T, within time.Duration, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !f(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s", what, within)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
