package upstream

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
)

// ServeSSH serves SSH for every user. A session answers echo, cat, and git's requests
// for the repositories of a directory.
func ServeSSH(t testing.TB, root string) (string, ssh.PublicKey) {
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
	address := Accept(t, "tcp4", "127.0.0.1:0", func(raw net.Conn) {
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
