package sshserver

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// conn is an authenticated connection.
type conn struct {
	server  *Server
	ssh     *ssh.ServerConn
	ctx     context.Context //nolint:containedctx // A conn is a call in flight, as a gRPC stream is.
	cancel  context.CancelCauseFunc
	log     *slog.Logger
	sandbox *sandgate.Sandbox
	home    string        // where relative paths begin
	files   chan struct{} // slots of open files

	work sync.WaitGroup
	mu   sync.Mutex
	open int         // channels
	idle *time.Timer // closes the connection while there are none
}

var (
	errUnused       = errors.New("the connection was not used")
	errDead         = errors.New("the peer does not answer")
	errDisconnected = errors.New("the peer disconnected")
)

// serve runs the connection's channels until it ends.
func (c *conn) serve(channels <-chan ssh.NewChannel, requests <-chan *ssh.Request) {
	c.idle = time.AfterFunc(c.server.timing.unused, func() { c.cancel(errUnused) })
	c.work.Go(func() { c.global(requests) })
	c.work.Go(c.probe)
	for incoming := range channels {
		c.accept(incoming)
	}
	c.cancel(errDisconnected)
	c.idle.Stop()
	c.work.Wait()
}

// global refuses all requests that concern the whole connection.
func (c *conn) global(requests <-chan *ssh.Request) {
	for request := range requests {
		if request.Type == "tcpip-forward" || strings.HasPrefix(request.Type, "streamlocal-forward") {
			c.log.Info("remote forwarding was refused")
		}
		if request.WantReply {
			_ = request.Reply(false, nil)
		}
	}
}

// probe closes the connection when its peer does not answer any more.
func (c *conn) probe() {
	ticker := time.NewTicker(c.server.timing.keepalive)
	defer ticker.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-ticker.C:
		}
		late := time.AfterFunc(c.server.timing.answer, func() { c.cancel(errDead) })
		_, _, err := c.ssh.SendRequest("keepalive@openssh.com", true, nil)
		late.Stop()
		if err != nil {
			return
		}
	}
}

// accept begins a channel, or refuses it.
func (c *conn) accept(incoming ssh.NewChannel) {
	var serve func(ssh.NewChannel)
	switch incoming.ChannelType() {
	case "session":
		serve = c.session
	case "direct-tcpip":
		serve = c.forward
	default:
		_ = incoming.Reject(ssh.UnknownChannelType, "sandgate: only sessions and connections to ports of the sandbox are supported")
		return
	}
	if !c.begin() {
		_ = incoming.Reject(ssh.ResourceShortage, "sandgate: the connection has too many channels")
		return
	}
	c.work.Go(func() {
		defer c.end()
		serve(incoming)
	})
}

// begin counts a channel.
func (c *conn) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == maxChannels {
		return false
	}
	c.open++
	c.idle.Stop()
	return true
}

func (c *conn) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open--; c.open == 0 && c.ctx.Err() == nil {
		c.idle.Reset(c.server.timing.unused)
	}
}

// ended reports whether the peer has ended its direction of a channel. Reading returns
// io.EOF also if the channel was closed or the connection broke; then what was read may
// be a part. A request finds out: a peer whose channel is open answers it.
func ended(channel ssh.Channel) bool {
	_, err := channel.SendRequest("keepalive@openssh.com", true, nil)
	return err == nil
}
