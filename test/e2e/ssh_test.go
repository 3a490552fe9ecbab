package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandgate/sandgate/test/daemon"
)

// sshServer is a running "sandgate ssh-server" with one user.
type sshServer struct {
	t         *testing.T
	dir, port string
}

// startSSH starts an SSH server before a gateway.
func startSSH(t *testing.T, gateway *server, args ...string) *sshServer {
	t.Helper()
	s := &sshServer{t: t, dir: t.TempDir()}
	s.local("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", s.path("key"))
	cmd := gateway.command(context.Background(), append([]string{"ssh-server", "-o", "json", "--listen", "127.0.0.1:0",
		"--host-key", s.path("host"), "--authorized-keys", s.path("key.pub")}, args...)...)
	log := new(daemon.Log)
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// An interrupt ends it cleanly.
		_ = cmd.Process.Signal(syscall.SIGINT)
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("ssh-server: %v\n%s", err, log)
		}
	})
	var ready struct{ Address string }
	if err := json.NewDecoder(out).Decode(&ready); err != nil {
		t.Fatalf("%v, %s", err, log)
	}
	if _, s.port, err = net.SplitHostPort(ready.Address); err != nil {
		t.Fatal(err)
	}
	host := s.local("ssh-keygen", "-y", "-f", s.path("host"))
	if err := os.WriteFile(s.path("known"), []byte("[127.0.0.1]:"+s.port+" "+host), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// with returns the server for a subtest.
func (s *sshServer) with(t *testing.T) *sshServer { return &sshServer{t, s.dir, s.port} }

func (s *sshServer) path(name string) string { return filepath.Join(s.dir, name) }

// local runs a program of this machine.
func (s *sshServer) local(name string, args ...string) string {
	s.t.Helper()
	out, err := exec.CommandContext(s.t.Context(), name, args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s %v: %v, %s", name, args, err, out)
	}
	return string(out)
}

// options are those of OpenSSH's programs, without this user's configuration.
func (s *sshServer) options(more ...string) []string {
	return append([]string{"-F", "none", "-o", "Port=" + s.port, "-o", "UserKnownHostsFile=" + s.path("known"), "-o", "StrictHostKeyChecking=yes",
		"-o", "IdentityFile=" + s.path("key"), "-o", "IdentitiesOnly=yes", "-o", "ConnectTimeout=120"}, more...)
}

// ssh runs ssh to a sandbox.
func (s *sshServer) ssh(id, stdin string, args ...string) ran {
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "ssh", append(s.options("-o", "BatchMode=yes", id+"@127.0.0.1"), args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	_ = cmd.Run()
	return ran{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// The programs of OpenSSH, and rsync, work with a sandbox as with any machine.
func TestSSH(t *testing.T) {
	need(t)
	id := shared.create(t)
	s := startSSH(t, shared)

	t.Run("commands", func(t *testing.T) {
		for _, tt := range []struct {
			command, stdin string
			want           ran
		}{
			{"echo out; echo err >&2; exit 3", "", ran{3, "out\n", "err\n"}},
			{"pwd", "", ran{0, "/workspace\n", ""}},
			{"cat", "some input", ran{0, "some input", ""}},
			{"tr a-z A-Z; exit 9", "some input", ran{9, "SOME INPUT", ""}},
			{"kill -TERM $$", "", ran{255, "", ""}}, // as with sshd
			{"", "echo from the shell\nexit 4\n", ran{4, "from the shell\n", ""}},
		} {
			if got := s.ssh(id, tt.stdin, "-T", tt.command); got != tt.want {
				t.Errorf("%q: %+v", tt.command, got)
			}
		}
		if got := s.ssh("no-such-sandbox", "", "true"); got.code != 255 || !strings.Contains(got.stderr, "SANDBOX_NOT_FOUND") {
			t.Errorf("unknown sandbox: %+v", got)
		}
		if got := s.ssh(id, "", "-R", "1:localhost:1", "-o", "ExitOnForwardFailure=yes", "-N"); got.code != 255 || !strings.Contains(got.stderr, "remote port forwarding failed") {
			t.Errorf("remote forwarding: %+v", got)
		}
	})

	t.Run("bulk", func(t *testing.T) {
		content := strings.Repeat("0123456789abcdef", 1<<20)
		sum := sha256.Sum256([]byte(content))
		if got := s.ssh(id, content, "sha256sum"); !strings.HasPrefix(got.stdout, hex.EncodeToString(sum[:])) {
			t.Errorf("there: %+v", got)
		}
		if got := s.ssh(id, content, "cat"); got.code != 0 || got.stdout != content {
			t.Errorf("and back: %d, %d bytes, %s", got.code, len(got.stdout), got.stderr)
		}
	})

	t.Run("terminal", func(t *testing.T) { s.with(t).terminal(id) })
	t.Run("scp", func(t *testing.T) { s.with(t).scp(id) })
	t.Run("sftp", func(t *testing.T) { s.with(t).sftp(id) })
	t.Run("rsync", func(t *testing.T) { s.with(t).rsync(id) })
	t.Run("forward", func(t *testing.T) { s.with(t).forward(id) })
}

// terminal runs ssh in a terminal, which changes its size.
func (s *sshServer) terminal(id string) {
	cmd := exec.CommandContext(s.t.Context(), "ssh", s.options("-t", id+"@127.0.0.1")...)
	master := startInTerminal(s.t, cmd, 33, 111)
	defer master.Close()
	screen := new(daemon.Log)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(screen, master)
	}()
	say := func(line string) {
		if _, err := io.WriteString(master, line+"\n"); err != nil {
			s.t.Error(err)
		}
	}
	shows := func(text string) func() bool {
		return func() bool { return strings.Contains(screen.String(), text) }
	}
	say("stty size; echo $TERM-end")
	eventually(s.t, 2*time.Minute, "the first size", func() bool { return shows("33 111")() && shows("xterm-end")() })
	resize(s.t, master, 44, 122)
	say(`until [ "$(stty size)" = "44 122" ]; do sleep 0.05; done; echo now-$((6 * 7))`)
	eventually(s.t, 2*time.Minute, "the second size", shows("now-42"))
	// Ctrl-C is the program's, not the client's.
	say("echo sleeps-$((6 * 7)); sleep 1000")
	eventually(s.t, 2*time.Minute, "the program runs", shows("sleeps-42"))
	say("\x03")
	say("exit 6")
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 6 {
		s.t.Errorf("exit code %d, %q", code, screen)
	}
	_ = master.Close()
	<-done
}

// tree makes files to copy and returns their directory.
func (s *sshServer) tree(name string) string {
	s.t.Helper()
	s.local("sh", "-ec", `mkdir -p "$1/sub/empty"; echo one >"$1/one"; head -c 3000000 /dev/urandom >"$1/sub/large"; : >"$1/sub/nothing"
		echo 'echo ran' >"$1/sub/program"; chmod 755 "$1/sub/program"; touch -d @1234567890 "$1/one"`, "sh", s.path(name))
	return s.path(name)
}

// same fails the test unless two directories have the same content.
func (s *sshServer) same(a, b string) {
	s.t.Helper()
	if out, err := exec.CommandContext(s.t.Context(), "diff", "-r", a, b).CombinedOutput(); err != nil {
		s.t.Errorf("%v: %s", err, out)
	}
}

func (s *sshServer) scp(id string) {
	from := s.tree("scp")
	remote := id + "@127.0.0.1:"
	for _, args := range [][]string{
		{"-r", from, remote + "scp-there"}, {"-r", remote + "scp-there", s.path("scp-back")},
		{"-p", from + "/one", remote + "scp-there/dated"},
		{from + "/one", remote + "scp-there/sub/large"}, // shorter than what it replaces
		{remote + "/workspace/scp-there/sub/large", s.path("short")},
	} {
		if out := s.local("scp", s.options(append([]string{"-o", "BatchMode=yes"}, args...)...)...); out != "" {
			s.t.Errorf("scp %v printed %s", args, out)
		}
	}
	s.same(from, s.path("scp-back"))
	s.same(from+"/one", s.path("short"))
	if got := s.ssh(id, "", "stat -c '%a %Y' scp-there/sub/program scp-there/dated; stat -c %Y scp-there/dated").stdout; !strings.HasPrefix(got, "755 ") || !strings.HasSuffix(got, " 1234567890\n1234567890\n") {
		s.t.Errorf("modes and times: %q", got)
	}
	out, err := exec.CommandContext(s.t.Context(), "scp", s.options("-o", "BatchMode=yes", from+"/one", remote+"none/one")...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "No such file") {
		s.t.Errorf("into a missing directory: %v, %s", err, out)
	}
}

func (s *sshServer) sftp(id string) {
	from := s.tree("sftp")
	head := s.path("head")
	s.local("sh", "-c", `head -c 1000000 "$1/sub/large" >"$2"`, "sh", from, head)
	batch := strings.Join([]string{
		"mkdir sftp-there", "cd sftp-there", "put -r " + from + " tree", "get -r tree " + s.path("sftp-back"),
		"put " + head + " grown", "reput " + from + "/sub/large grown", "get grown " + s.path("grown"),
		"get -p tree/one " + s.path("dated"),
		"cp tree/one none", // not supported; the batch goes on because of the dash
		"rename tree/one uno", "symlink uno link", "get link " + s.path("link"), "chmod 600 uno", "ls -l uno",
		"rm tree/sub/nothing", "rmdir tree/sub/empty", "ln uno dos",
	}, "\n")
	batch = strings.Replace(batch, "cp tree", "-cp tree", 1)
	cmd := exec.CommandContext(s.t.Context(), "sftp", s.options("-b", "-", id+"@127.0.0.1")...)
	cmd.Stdin = strings.NewReader(batch)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "-rw-------") {
		s.t.Fatalf("%v: %s", err, out)
	}
	s.same(from, s.path("sftp-back"))
	s.same(from+"/sub/large", s.path("grown"))
	s.same(from+"/one", s.path("link"))
	if info, err := os.Stat(s.path("dated")); err != nil || info.ModTime().Unix() == 0 {
		s.t.Errorf("%v, %v", info, err)
	}
	if got := s.ssh(id, "", "cd sftp-there; ls -a tree tree/sub; readlink link; stat -c %h uno").stdout; got != "tree:\n.\n..\nsub\n\ntree/sub:\n.\n..\nlarge\nprogram\nuno\n2\n" {
		s.t.Errorf("left: %q", got)
	}
}

func (s *sshServer) rsync(id string) {
	from := s.tree("rsync")
	shell := "ssh -o BatchMode=yes " + strings.Join(s.options(), " ")
	s.local("rsync", "-a", "-e", shell, from+"/", id+"@127.0.0.1:rsync-there")
	s.local("sh", "-c", `echo more >>"$1/sub/large"; rm "$1/sub/nothing"`, "sh", from)
	s.local("rsync", "-a", "--delete", "-e", shell, from+"/", id+"@127.0.0.1:rsync-there")
	s.local("rsync", "-a", "-e", shell, id+"@127.0.0.1:rsync-there/", s.path("rsync-back"))
	s.same(from, s.path("rsync-back"))
}

// forward reaches a server in the sandbox, which has no network, through a local socket.
func (s *sshServer) forward(id string) {
	shared.must(s.t, "exec", id, "-c", "echo hello from inside >/tmp/page")
	shared.must(s.t, "exec", "--detach", id, "--", "python3", "-m", "http.server", "--bind", "127.0.0.1", "-d", "/tmp", "8000")
	ctx, cancel := context.WithCancelCause(s.t.Context())
	defer cancel(nil)
	socket := s.path("socket")
	cmd := exec.CommandContext(ctx, "ssh", s.options("-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes", "-N", "-L", socket+":localhost:8000", id+"@127.0.0.1")...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	defer func() {
		cancel(nil)
		_ = cmd.Wait()
	}()
	eventually(s.t, 2*time.Minute, "an answer from inside", func() bool {
		out, err := exec.CommandContext(ctx, "curl", "-sS", "--unix-socket", socket, "http://localhost/page").Output()
		return err == nil && string(out) == "hello from inside\n"
	})
	// The same without a local listener.
	got := s.ssh(id, "GET /page HTTP/1.0\r\n\r\n", "-W", "127.0.0.1:8000")
	if !strings.HasSuffix(got.stdout, "hello from inside\n") {
		s.t.Errorf("%+v", got)
	}
	if got := s.ssh(id, "", "-W", "localhost:9"); got.code == 0 || !strings.Contains(got.stderr, "PORT_CLOSED") {
		s.t.Errorf("a closed port: %+v", got)
	}
	if got := s.ssh(id, "", "-W", "192.0.2.1:80"); got.code == 0 || !strings.Contains(got.stderr, "loopback") {
		s.t.Errorf("another host: %+v", got)
	}
}

// A token is a password, and the server checks it.
func TestSSHToken(t *testing.T) {
	need(t)
	gateway, token := guarded(t)
	if got := gateway.run("", "--token", token, "create", "box"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	t.Cleanup(func() { gateway.run("", "--token", token, "rm", "--force", "box") })
	s := startSSH(t, gateway, "--tokens")
	for password, want := range map[string]ran{token: {5, "in\n", ""}, "wrong": {255, "", ""}} {
		ask := s.path("ask")
		if err := os.WriteFile(ask, []byte("#!/bin/sh\necho '"+password+"'\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "ssh", s.options("-o", "PubkeyAuthentication=no", "-o", "NumberOfPasswordPrompts=1", "box@127.0.0.1", "echo in; exit 5")...)
		cmd.Env = append(os.Environ(), "SSH_ASKPASS="+ask, "SSH_ASKPASS_REQUIRE=force")
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		_ = cmd.Run()
		if code := cmd.ProcessState.ExitCode(); code != want.code || stdout.String() != want.stdout || password == "wrong" && !strings.Contains(stderr.String(), "CREDENTIALS_INVALID") {
			t.Errorf("%d, %q, %s", code, &stdout, &stderr)
		}
	}
}
