// Package e2e runs the real program against the real program: bin/sandgate as
// command line and as server, with sandboxes of the local provider.
package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandgate/sandgate/test/daemon"
)

// shared is the server that most tests use.
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

// reason returns why these tests cannot run here, or nothing.
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

// server is a server under test, which a test can kill and restart.
type server struct {
	dir, address string
	program      string // empty: daemon.Program()
	args, env    []string
	log          *daemon.Log
	*daemon.Daemon
}

// newServer returns a server that is not started yet, with its state in dir.
func newServer(dir string, args ...string) *server {
	return &server{dir: dir, address: "unix://" + filepath.Join(dir, "s.sock"), args: args, log: new(daemon.Log)}
}

// serve starts a server with its state in dir and with more flags.
func serve(dir string, args ...string) (*server, error) {
	s := newServer(dir, args...)
	return s, s.start()
}

// start starts the server, again after it was killed.
func (s *server) start() (err error) {
	s.Daemon, err = daemon.Start(context.Background(), daemon.Options{
		Program: s.program, Listen: s.address, Log: s.log, Env: s.env,
		Args: append([]string{"--state-dir", filepath.Join(s.dir, "state"), "--local-cgroup", "/sandgate-e2e"}, s.args...),
	})
	if err == nil {
		s.address = s.Address
	}
	return err
}

// stop deletes all sandboxes, stops the server and removes its state.
func (s *server) stop() error {
	left := s.run("", "rm", "--all", "--yes")
	err := s.Stop()
	if left.code != 0 {
		err = errors.Join(err, errors.New(left.stderr))
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// ran is the result of one run of the program.
type ran struct {
	code           int
	stdout, stderr string
}

// command returns a command that runs the program against the server.
func (s *server) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, daemon.Program(), args...)
	cmd.Env = append(os.Environ(), "SANDGATE_ADDRESS="+s.address, "SANDGATE_TOKEN=")
	return cmd
}

// run runs the program and waits for it.
func (s *server) run(stdin string, args ...string) ran {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := s.command(ctx, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	_ = cmd.Run()
	return ran{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// must runs the program and fails the test if it fails.
func (s *server) must(t *testing.T, args ...string) string {
	t.Helper()
	r := s.run("", args...)
	if r.code != 0 {
		t.Fatalf("sandgate %v: exit code %d, %s", args, r.code, r.stderr)
	}
	return strings.TrimSpace(r.stdout)
}

// create creates a sandbox for one test.
func (s *server) create(t *testing.T, args ...string) string {
	t.Helper()
	id := s.must(t, append([]string{"create"}, args...)...)
	t.Cleanup(func() { s.run("", "rm", "--force", id) })
	return id
}

// counting prints a number every tenth of a second until /workspace/end exists,
// then exits with 7.
const counting = "i=0; until [ -e /workspace/end ]; do i=$((i+1)); echo $i; sleep 0.1; done; exit 7"

// checkCounted fails the test unless out holds the lines of counting without a gap,
// at least one.
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

// eventually waits until f returns true.
func eventually(t *testing.T, within time.Duration, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !f(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s", what, within)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
