package sshserver

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/sandgate/sandgate/test/daemon"
)

func TestCommands(t *testing.T) {
	b := open(t, nil, nil)
	client := b.login()
	tests := []struct {
		name    string
		command string
		stdin   string
		env     [2]string
		stdout  string
		stderr  string
		code    int
		signal  string
	}{
		{name: "output", command: "echo out; echo err >&2", stdout: "out\n", stderr: "err\n"},
		{name: "exit status", command: "exit 3", code: 3},
		{name: "greatest exit status", command: "exit 255", code: 255},
		{name: "nothing", command: ""},
		{name: "stdin", command: "cat; echo end", stdin: "some\x00input", stdout: "some\x00inputend\n"},
		{name: "unread stdin", command: "exit 4", stdin: strings.Repeat("x", 1<<20), code: 4},
		{name: "directory", command: "pwd", stdout: b.home + "\n"},
		{name: "a shell's syntax", command: `for i in 1 2; do echo "$i"; done | tail -1`, stdout: "2\n"},
		{name: "signal", command: "kill -TERM $$", signal: "TERM"},
		{name: "kill", command: "kill -9 $$", signal: "KILL"},
		{name: "a signal without a name in SSH", command: "kill -16 $$", signal: "STKFLT@sandgate"},
		{name: "missing program", command: "no-such-program", code: 127, stderr: "not found"},
		{name: "language", command: `echo "$LC_TEST"`, env: [2]string{"LC_TEST", "x y"}, stdout: "x y\n"},
		{name: "another variable", command: `echo "$LD_PRELOAD"`, env: [2]string{"LD_PRELOAD", "x"}, stdout: "\n"},
		{name: "no terminal", command: "tty", code: 1, stdout: "not a tty\n"},
		{name: "a child that holds the output", command: "echo out; sleep 1000 & exit 5", stdout: "out\n", code: 5},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, stdout, stderr := b.session(client)
			if tt.env[0] != "" {
				if err := s.Setenv(tt.env[0], tt.env[1]); (err == nil) != (tt.stdout != "\n") {
					t.Errorf("setting it: %v", err)
				}
			}
			s.Stdin = strings.NewReader(tt.stdin)
			err := s.Run(tt.command)
			code, signal := 0, ""
			if end := (*ssh.ExitError)(nil); errors.As(err, &end) {
				if signal = end.Signal(); signal == "" {
					code = end.ExitStatus()
				}
			} else if err != nil && !errors.Is(err, io.EOF) { // of input that was not read
				t.Fatal(err)
			}
			if code != tt.code && tt.name != "unread stdin" || signal != tt.signal || stdout.String() != tt.stdout ||
				!strings.Contains(stderr.String(), tt.stderr) || tt.stderr == "" && stderr.Len() > 0 {
				t.Errorf("%d, %q, stdout %q, stderr %q", code, signal, stdout, stderr)
			}
		})
	}
}

// Large data arrives whole in both directions, also if its reader is slow.
func TestBulk(t *testing.T) {
	b := open(t, nil, nil)
	content := make([]byte, 8<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(content)
	s, err := b.login().NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	sum := sha256.New()
	s.Stdin, s.Stdout = bytes.NewReader(content), sum
	if err := s.Run("cat"); err != nil {
		t.Fatal(err)
	}
	if want := sha256.Sum256(content); !bytes.Equal(sum.Sum(nil), want[:]) {
		t.Error("the content was changed on the way")
	}
}

func TestTerminal(t *testing.T) {
	b := open(t, nil, nil)
	client := b.login()
	s, _, _ := b.session(client)
	stdout := new(daemon.Log)
	s.Stdout = stdout
	if err := s.RequestPty("xterm-test", 30, 100, ssh.TerminalModes{ssh.ECHO: 0}); err != nil {
		t.Fatal(err)
	}
	if err := s.RequestPty("xterm", 30, 100, nil); err == nil {
		t.Error("a second terminal was accepted")
	}
	// A size from before the command counts, too.
	if err := s.WindowChange(31, 100); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(`test -t 0 && test -t 2 && stty size && echo $TERM; until [ "$(stty size)" = "50 120" ]; do sleep 0.02; done; exit 7`); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command has its first size", func() bool { return strings.Contains(stdout.String(), "xterm-test") })
	if err := s.WindowChange(50, 120); err != nil {
		t.Fatal(err)
	}
	var end *ssh.ExitError
	if err := s.Wait(); !errors.As(err, &end) || end.ExitStatus() != 7 {
		t.Errorf("%v", err)
	}
	if got := stdout.String(); got != "31 100\r\nxterm-test\r\n" {
		t.Errorf("it printed %q", got)
	}
}

func TestShell(t *testing.T) {
	b := open(t, nil, nil)
	client := b.login()
	for _, terminal := range []bool{false, true} {
		s, stdout, stderr := b.session(client)
		if terminal {
			// The user learns that the agent is not forwarded.
			if err := s.RequestPty("dumb", 0, 0, nil); err != nil {
				t.Fatal(err)
			}
			if ok, err := s.SendRequest("auth-agent-req@openssh.com", true, nil); ok || err != nil {
				t.Errorf("agent forwarding: %v, %v", ok, err)
			}
		}
		s.Stdin = strings.NewReader("echo $((6 * 7))\nexit 3\n")
		err := s.Shell()
		if err == nil {
			err = s.Wait()
		}
		var end *ssh.ExitError
		if !errors.As(err, &end) || end.ExitStatus() != 3 || !strings.Contains(stdout.String(), "42") {
			t.Errorf("terminal %v: %v, %q, %q", terminal, err, stdout, stderr)
		}
		if strings.Contains(stderr.String(), "SSH agent was refused") != terminal {
			t.Errorf("terminal %v: stderr %q", terminal, stderr)
		}
	}
}

func TestSignal(t *testing.T) {
	b := open(t, nil, nil)
	client := b.login()
	s, _, _ := b.session(client)
	stdout := new(daemon.Log)
	s.Stdout = stdout
	if err := s.Start(`trap "echo caught; exit 9" USR1; echo ready; while :; do sleep 0.05; done`); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command is ready", func() bool { return stdout.String() == "ready\n" })
	if ok, err := s.SendRequest("signal", true, ssh.Marshal(textRequest{"NOSUCH"})); ok || err != nil {
		t.Errorf("an unknown signal: %v, %v", ok, err)
	}
	if err := s.Signal(ssh.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	var end *ssh.ExitError
	if err := s.Wait(); !errors.As(err, &end) || end.ExitStatus() != 9 || stdout.String() != "ready\ncaught\n" {
		t.Errorf("%v, %q", err, stdout)
	}
}

func TestRefusedRequests(t *testing.T) {
	b := open(t, nil, nil)
	client := b.login()
	s, _, _ := b.session(client)
	for _, name := range []string{"x11-req", "auth-agent-req@openssh.com", "break", "no-such-request", "signal", "window-change", "exec", "pty-req", "env", "subsystem"} {
		if ok, err := s.SendRequest(name, true, []byte{1}); ok || err != nil {
			t.Errorf("%s: %v, %v", name, ok, err)
		}
	}
	if err := s.RequestSubsystem("no-such-subsystem"); err == nil {
		t.Error("an unknown subsystem was accepted")
	}
	if err := s.Start("cat"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"shell", "exec"} {
		if ok, err := s.SendRequest(name, true, ssh.Marshal(textRequest{"true"})); ok || err != nil {
			t.Errorf("a second command by %s: %v, %v", name, ok, err)
		}
	}
	if err := s.Setenv("LANG", "C"); err == nil {
		t.Error("a variable was accepted after the start")
	}
	if _, err := client.Listen("tcp", "127.0.0.1:0"); err == nil {
		t.Error("remote forwarding was accepted")
	}
	if _, _, err := client.OpenChannel("x11", nil); err == nil || !strings.Contains(err.Error(), "only sessions") {
		t.Errorf("another channel: %v", err)
	}
}

// A command ends with its channel, and with its connection.
func TestDisconnect(t *testing.T) {
	b := open(t, nil, nil)
	for name, hangUp := range map[string]func(*ssh.Client, *ssh.Session){
		"channel":    func(_ *ssh.Client, s *ssh.Session) { _ = s.Close() },
		"connection": func(c *ssh.Client, _ *ssh.Session) { _ = c.Close() },
		"server":     func(*ssh.Client, *ssh.Session) { b.end(); b.serve(nil) },
	} {
		client := b.login()
		s, _, _ := b.session(client)
		in, err := s.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := os.CreateTemp(b.home, "")
		if err != nil {
			t.Fatal(err)
		}
		_ = out.Close()
		// Input that breaks off must not look like one that ended.
		if err := s.Start("cat >" + out.Name() + "; echo whole >" + out.Name() + ".end; sleep 1000"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(in, "part"); err != nil {
			t.Fatal(err)
		}
		eventually(t, name+": the input arrives", func() bool {
			raw, err := os.ReadFile(out.Name())
			return err == nil && string(raw) == "part"
		})
		hangUp(client, s)
		b.idle()
		if _, err := os.Stat(out.Name() + ".end"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the command took a part of the input for the whole: %v", name, err)
		}
	}
}

// A failure of one sandbox is one line and an exit status.
func TestFailures(t *testing.T) {
	b := open(t, nil, nil)
	client := b.login()
	if err := b.sandbox.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, stdout, stderr := b.session(client)
	var end *ssh.ExitError
	if err := s.Run("true"); !errors.As(err, &end) || end.ExitStatus() != failed || stdout.Len() > 0 ||
		!strings.HasPrefix(stderr.String(), "sandgate: ") || !strings.Contains(stderr.String(), "SANDBOX_NOT_FOUND") || strings.Count(stderr.String(), "\n") != 1 {
		t.Errorf("%v, %q", err, stderr)
	}
}

// A sandbox that is deleted ends its commands.
func TestDeletedSandbox(t *testing.T) {
	b := open(t, nil, nil)
	s, _, stderr := b.session(b.login())
	if err := s.Start("sleep 1000"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command runs", func() bool { return b.running() == 1 })
	if err := b.sandbox.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	var end *ssh.ExitError
	if err := s.Wait(); !errors.As(err, &end) || !strings.HasPrefix(stderr.String(), "sandgate: ") {
		t.Errorf("%v, %q", err, stderr)
	}
}

func TestSignalNames(t *testing.T) {
	for name, want := range map[string]string{"SIGTERM": "TERM", "SIGBUS": "BUS@sandgate", "": "KILL", "SIGUSR2": "USR2"} {
		if got := signalName(name); got != want {
			t.Errorf("%q is %q", name, got)
		}
	}
}

func TestTerminalSizes(t *testing.T) {
	for _, tt := range []struct {
		rows, columns uint32
		want          [2]int32
	}{{0, 0, [2]int32{24, 80}}, {1, 1, [2]int32{1, 1}}, {1 << 31, 70000, [2]int32{65535, 65535}}, {0, 5, [2]int32{24, 5}}} {
		if got := terminalSize(tt.rows, tt.columns); got.GetRows() != tt.want[0] || got.GetColumns() != tt.want[1] {
			t.Errorf("%d, %d: %v", tt.rows, tt.columns, got)
		}
	}
}
