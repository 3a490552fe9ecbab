package e2e

import (
	"bufio"
	"context"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestRun(t *testing.T) {
	need(t)
	got := shared.run("", "run", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
	if got != (ran{3, "out\n", "err\n"}) {
		t.Errorf("got %+v", got)
	}
	if left := shared.must(t, "ls", "--quiet"); left != "" {
		t.Errorf("left behind: %q", left)
	}
}

func TestExitCodes(t *testing.T) {
	need(t)
	id := shared.create(t)
	tests := []struct {
		name   string
		args   []string
		stdin  string
		code   int
		stdout string
		stderr string // contained
	}{
		{name: "success", args: []string{id, "--", "true"}},
		{name: "code", args: []string{id, "--", "sh", "-c", "exit 3"}, code: 3},
		{name: "shell", args: []string{id, "-c", "echo $((6 * 7))"}, stdout: "42\n"},
		{name: "timeout", args: []string{"--timeout", "3s", id, "-c", "echo part; sleep 100"}, code: 124, stdout: "part\n", stderr: "TIMED_OUT"},
		{name: "signal", args: []string{id, "--", "sh", "-c", "kill -9 $$"}, code: 137},
		{name: "another signal", args: []string{id, "--", "sh", "-c", "kill -TERM $$"}, code: 143},
		{name: "missing program", args: []string{id, "--", "no-such-program"}, code: 125, stderr: "COMMAND_NOT_FOUND"},
		{name: "not executable", args: []string{id, "--", "/etc/passwd"}, code: 125, stderr: "COMMAND_NOT_EXECUTABLE"},
		{name: "bad directory", args: []string{"--cwd", "/none", id, "--", "true"}, code: 125, stderr: "WORKING_DIRECTORY_INVALID"},
		{name: "relative directory", args: []string{"--cwd", "none", id, "--", "true"}, code: 125, stderr: "_INVALID"},
		{name: "unknown sandbox", args: []string{"none", "--", "true"}, code: 125, stderr: "SANDBOX_NOT_FOUND"},
		{name: "malformed id", args: []string{"no/such", "--", "true"}, code: 125, stderr: "sandgate: "},
		{name: "environment and directory", args: []string{"--env", "A=b c", "--cwd", "/tmp", id, "-c", `echo "$A"; pwd`}, stdout: "b c\n/tmp\n"},
		{name: "input", args: []string{"-i", id, "--", "cat"}, stdin: "some input", stdout: "some input"},
		{name: "no input", args: []string{id, "--", "cat"}, stdin: "some input"},
		{name: "capped output", args: []string{"--max-output", "10", id, "-c", "yes | head -c 1000000"}, stdout: "y\ny\ny\ny\ny\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := shared.run(tt.stdin, append([]string{"exec"}, tt.args...)...)
			if got.code != tt.code || got.stdout != tt.stdout {
				t.Errorf("got %+v", got)
			}
			if !strings.Contains(got.stderr, tt.stderr) || tt.stderr == "" && got.stderr != "" {
				t.Errorf("stderr %q", got.stderr)
			}
			if tt.code == 125 && strings.Count(got.stderr, "\n") != 1 {
				t.Errorf("stderr is not one line: %q", got.stderr)
			}
		})
	}
}

// Output arrives while the command runs, not after.
func TestStreaming(t *testing.T) {
	need(t)
	id := shared.create(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := shared.command(ctx, "exec", "-i", id, "-c", "echo ready; read line; echo got $line >&2")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Errorf("got %q, %v", line, err)
	}
	if _, err := io.WriteString(in, "word\n"); err != nil {
		t.Error(err)
	}
	if line, err := bufio.NewReader(errs).ReadString('\n'); line != "got word\n" {
		t.Errorf("got %q, %v", line, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// alive reports whether a command with a mark runs in a sandbox.
func alive(id, mark string) bool {
	return strings.Contains(shared.run("", "ps", id).stdout, mark) ||
		shared.run("", "exec", id, "-c", "grep -l "+mark[:1]+"["+mark[1:2]+"]"+mark[2:]+" /proc/[0-9]*/cmdline 2>/dev/null").stdout != ""
}

// Ctrl-C kills the command with all its descendants, at once.
func TestInterruptKillsTheCommandAndItsDescendants(t *testing.T) {
	need(t)
	id := shared.create(t)
	cmd := shared.command(t.Context(), "exec", id, "-c", "echo ready; setsid sleep 4711 & sleep 4711")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Error(err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("exit code %d", code)
	}
	eventually(t, 30*time.Second, "no process left", func() bool { return !alive(id, "4711") })
}

// A program that is killed cannot kill its command: the command ends after its grace
// period.
func TestCommandEndsAfterTheGraceOfAKilledCaller(t *testing.T) {
	need(t)
	id := shared.create(t)
	cmd := shared.command(t.Context(), "exec", "--grace", "6s", id, "-c", "echo ready; setsid sleep 4712 & sleep 4712")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Error(err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if !alive(id, "4712") {
		t.Error("the command did not live on for its grace")
	}
	eventually(t, 60*time.Second, "no process left", func() bool { return !alive(id, "4712") })
}

func TestDetached(t *testing.T) {
	need(t)
	id := shared.create(t)
	exec := shared.must(t, "exec", "--detach", id, "-c", "echo one; read x; echo two")
	if got := shared.must(t, "attach", id, exec); got != "one\ntwo" {
		t.Errorf("attach: %q", got)
	}
	if got := shared.must(t, "logs", id, exec); got != "one\ntwo" {
		t.Errorf("logs: %q", got)
	}
	long := shared.must(t, "exec", "--detach", id, "--", "sleep", "4713")
	if got := shared.must(t, "ps", id); !strings.Contains(got, long) || !strings.Contains(got, "sleep 4713") || strings.Contains(got, exec) {
		t.Errorf("ps: %s", got)
	}
	shared.must(t, "kill", "--signal", "TERM", id, long)
	if got := shared.run("", "attach", id, long); got.code != 143 {
		t.Errorf("attach after a kill: %+v", got)
	}
	if got := shared.must(t, "ps", "--all", id); !strings.Contains(got, exec) {
		t.Errorf("ps --all: %s", got)
	}
}

// A broken pipe ends the program and the command.
func TestBrokenOutputPipeEndsProgramAndCommand(t *testing.T) {
	need(t)
	id := shared.create(t)
	cmd := shared.command(t.Context(), "exec", id, "-c", "yes 4714")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Error(err)
	}
	_ = out.Close()
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 141 {
		t.Errorf("exit code %d", code)
	}
	eventually(t, 30*time.Second, "no process left", func() bool { return !alive(id, "4714") })
}
