package sshserver

import (
	"context"
	"errors"
	"io"

	"golang.org/x/crypto/ssh"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/cmd/sandgate/internal/terminal"
)

// directTCPIP is the payload of a direct-tcpip channel (RFC 4254, section 7.2).
type directTCPIP struct {
	Host       string
	Port       uint32
	OriginHost string
	OriginPort uint32
}

// forward connects a channel to a port of the sandbox.
func (c *conn) forward(incoming ssh.NewChannel) {
	var to directTCPIP
	if err := ssh.Unmarshal(incoming.ExtraData(), &to); err != nil || to.Port == 0 || to.Port > 65535 {
		_ = incoming.Reject(ssh.ConnectionFailed, "sandgate: the destination is malformed")
		return
	}
	remote, err := c.sandbox.Connect(c.ctx, int(to.Port), sandgate.ConnectHost(to.Host))
	if err != nil {
		reason := ssh.RejectionReason(ssh.ConnectionFailed)
		if !errors.Is(err, sandgate.ErrPortClosed) {
			reason = ssh.Prohibited
		}
		_ = incoming.Reject(reason, "sandgate: "+terminal.Clean(err.Error()))
		return
	}
	defer func() { _ = remote.Close() }()
	channel, requests, err := incoming.Accept()
	if err != nil {
		remote.Reset()
		return
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		ssh.DiscardRequests(requests)
	}()
	join(c.ctx, channel, remote)
	// A channel counts until the peer has closed it, too.
	<-closed
}

// join copies in both directions until both have ended, one fails, or ctx ends.
func join(ctx context.Context, channel ssh.Channel, remote *sandgate.Conn) {
	abort := func() {
		remote.Reset()
		_ = channel.Close()
	}
	defer context.AfterFunc(ctx, abort)()
	in := make(chan struct{})
	go func() {
		defer close(in)
		if !relay(remote, channel) || !ended(channel) || remote.CloseWrite() != nil {
			abort()
		}
	}()
	if !relay(channel, remote) || channel.CloseWrite() != nil {
		abort()
	}
	<-in
	_ = channel.Close()
}

// relay copies until the source has ended, and reports whether it did.
func relay(to io.Writer, from io.Reader) bool {
	// Larger pieces would be cut in two.
	_, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, 32_000))
	return err == nil
}
