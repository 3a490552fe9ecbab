package network

import (
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers/local"
)

// TestProgramsThatSpeakNoHTTPReachAllowedNamesOnly: a rule with a port lets ssh, and git by ssh and
// by git's own protocol, out to that name and port, and to no other.
func TestProgramsThatSpeakNoHTTPReachAllowedNamesOnly(t *testing.T) {
	repo := repository(t)
	gitPort := portOf(serveGit(t, repo))
	sshAddress, hostKey := serveSSH(t, repo)
	sshPort := portOf(sshAddress)
	for _, runtime := range []string{"runc", "runsc"} {
		t.Run(runtime, func(t *testing.T) {
			b := start(t, runtime, local.ProfileDefault, gitPort, sshPort)
			box := b.create(&sandboxv1.EgressRule{Hosts: []string{"git.example"}, Cidrs: []string{"127.0.0.1/32"}, Ports: []uint32{gitPort, sshPort}})
			known := knownhosts.Line([]string{fmt.Sprintf("git.example:%d", sshPort)}, hostKey)
			if _, err := box.Write(t.Context(), "/workspace/known", []byte(known+"\n"), sandgate.WriteRequest{}); err != nil {
				t.Fatal(err)
			}
			const client = "ssh -F none -o BatchMode=yes -o UserKnownHostsFile=/workspace/known "
			login := fmt.Sprintf(client+"-p %d anyone@", sshPort)
			for _, c := range []struct{ name, script, want string }{
				{"ssh", login + "git.example echo out", "out"},
				{"ssh, bulk both ways", "head -c 3000000 /dev/urandom >in; " + login + "git.example cat <in | cmp - in && echo same", "same"},
				{"git by ssh", fmt.Sprintf("GIT_SSH_COMMAND='%s' git clone -q ssh://anyone@git.example:%d/repo.git one && cat one/file", client, sshPort), "content"},
				{"git's own protocol", fmt.Sprintf("git clone -q git://git.example:%d/repo.git two && cat two/file", gitPort), "content"},
			} {
				if got, code := sh(t, box, c.script); got != c.want || code != 0 {
					t.Errorf("%s: %q, exit code %d", c.name, got, code)
				}
			}
			for _, c := range []struct{ name, script, want string }{
				{"ssh, other name", login + "evil.example echo out", "Could not resolve hostname"},
				{"ssh, other port", client + fmt.Sprintf("-o ConnectTimeout=20 -p %d anyone@git.example echo out", sshPort+1), "git.example"},
				{"ssh, the address", client + fmt.Sprintf("-o ConnectTimeout=20 -o StrictHostKeyChecking=no -p %d anyone@192.0.2.7 echo out", sshPort), "192.0.2.7"},
				{"git, other name", fmt.Sprintf("git clone -q git://evil.example:%d/repo.git three", gitPort), "unable to look up evil.example"},
			} {
				if got, code := sh(t, box, c.script); !strings.Contains(got, c.want) || code == 0 {
					t.Errorf("refused, %s: %q, exit code %d", c.name, got, code)
				}
			}
		})
	}
}

// repository returns a directory with a repository, repo.git, and its checkout, site. A
// file in it has the text "content".
func repository(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	const script = `set -e; cd "$1"; export HOME=$1 GIT_CONFIG_NOSYSTEM=1; git init -q -b main site; echo content >site/file
git -C site add file; git -C site -c user.name=n -c user.email=n@example.com commit -q -m first
git clone -q --bare site repo.git; git -C repo.git update-server-info`
	if out, err := exec.Command("/bin/sh", "-c", script, "sh", root).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return root
}

// serveGit serves the repositories of a directory by git's own protocol.
func serveGit(t *testing.T, root string) string {
	t.Helper()
	return accept(t, func(conn net.Conn) {
		file, err := conn.(*net.TCPConn).File()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = file.Close() }()
		daemon := exec.Command("git", "daemon", "--inetd", "--export-all", "--base-path="+root)
		daemon.Stdin, daemon.Stdout = file, file
		_ = daemon.Run() // the client of the other end judges
	})
}

// serveSSH serves SSH for every user. A session answers echo, cat, and git's requests
// for the repositories of a directory.
func serveSSH(t *testing.T, root string) (string, ssh.PublicKey) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	config := &ssh.ServerConfig{NoClientAuth: true}
	config.AddHostKey(signer)
	address := accept(t, func(raw net.Conn) {
		conn, channels, requests, err := ssh.NewServerConn(raw, config)
		if err != nil {
			return // a client that may not come this far
		}
		defer func() { _ = conn.Close() }()
		go ssh.DiscardRequests(requests)
		for offered := range channels {
			channel, requests, err := offered.Accept()
			if err != nil {
				return
			}
			go session(channel, requests, root)
		}
	})
	return address, signer.PublicKey()
}

func session(channel ssh.Channel, requests <-chan *ssh.Request, root string) {
	defer func() { _ = channel.Close() }()
	for r := range requests {
		var body struct{ Command string }
		if r.Type != "exec" || ssh.Unmarshal(r.Payload, &body) != nil {
			_ = r.Reply(r.Type == "env", nil)
			continue
		}
		_ = r.Reply(true, nil)
		name, argument, _ := strings.Cut(body.Command, " ")
		code := uint32(0)
		switch name {
		case "echo":
			_, _ = fmt.Fprintln(channel, argument)
		case "cat":
			_, _ = io.Copy(channel, channel)
		case "git-upload-pack":
			git := exec.Command("git", "upload-pack", filepath.Join(root, filepath.Base(strings.Trim(argument, "'"))))
			git.Stdout = channel
			in, err := git.StdinPipe() // not Stdin: the client may end its input only after the exit
			if err == nil {
				go func() { _, _ = io.Copy(in, channel) }()
				err = git.Run()
			}
			if err != nil {
				code = 1
			}
		default:
			code = 127
		}
		_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{code}))
		return
	}
}

// accept listens on this machine until the test ends, and returns the address.
func accept(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				serve(conn)
			}()
		}
	}()
	return l.Addr().String()
}
