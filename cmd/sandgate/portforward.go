package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

func (c *cli) portForwardCommand() *cobra.Command {
	bind := ""
	cmd := &cobra.Command{
		Use:   "port-forward [flags] ID [LOCAL:]PORT…",
		Short: "Listen here for connections to ports of a sandbox",
		Long: `Listen on local ports, and connect each connection to a port that a program in the
sandbox listens on, on a loopback address. LOCAL is the port here: the same one by
default, a free one for 0. Each listener prints one line. A connection that fails is
reported and ends alone. port-forward runs until it is interrupted, and then exits
with 0. An open connection without traffic does not keep the sandbox from becoming
idle.`,
		Example: `  sandgate port-forward build-42 3000           localhost:3000 is port 3000 of the sandbox
  sandgate port-forward build-42 8080:80 0:5432
  sandgate port-forward --bind 0.0.0.0 build-42 3000     for other machines, too`,
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: c.completeSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			var pairs []portPair
			for _, arg := range args[1:] {
				pair, err := parsePorts(arg)
				if err != nil {
					return usage(cmd, "%v", err)
				}
				pairs = append(pairs, pair)
			}
			return c.with(cmd, func(ctx context.Context, client *sandgate.Client) error {
				return c.portForward(ctx, client.Sandbox(args[0]), bind, pairs)
			})
		},
	}
	cmd.Flags().StringVar(&bind, "bind", "127.0.0.1", "local address to listen on")
	return cmd
}

// portPair is a local port and a port of the sandbox.
type portPair struct{ local, remote int }

// parsePorts parses [LOCAL:]PORT.
func parsePorts(text string) (portPair, error) {
	local, remote, both := strings.Cut(text, ":")
	if !both {
		local, remote = text, text
	}
	if both && local == "" {
		local = "0"
	}
	to, err := strconv.ParseUint(remote, 10, 16)
	if err != nil || to == 0 {
		return portPair{}, fmt.Errorf("%q is not [LOCAL:]PORT: a port of the sandbox is 1 to 65535", text)
	}
	from, err := strconv.ParseUint(local, 10, 16)
	if err != nil {
		return portPair{}, fmt.Errorf("%q is not [LOCAL:]PORT: a local port is 0 to 65535", text)
	}
	return portPair{int(from), int(to)}, nil
}

// portForward listens on all pairs until ctx ends.
func (c *cli) portForward(ctx context.Context, sandbox *sandgate.Sandbox, bind string, pairs []portPair) error {
	if _, err := sandbox.Info(ctx); err != nil {
		return err
	}
	var listeners []net.Listener
	stop := func() {
		for _, l := range listeners {
			_ = l.Close()
		}
	}
	defer stop()
	for _, pair := range pairs {
		l, err := net.Listen("tcp", net.JoinHostPort(bind, strconv.Itoa(pair.local)))
		if err != nil {
			return fmt.Errorf("listen for port %d of the sandbox: %w", pair.remote, err)
		}
		listeners = append(listeners, l)
	}
	for i, l := range listeners {
		if err := c.listening(l.Addr(), sandbox.ID(), pairs[i].remote); err != nil {
			return err
		}
	}
	defer context.AfterFunc(ctx, stop)()
	var work sync.WaitGroup
	for i, l := range listeners {
		work.Go(func() { c.acceptAll(ctx, l, sandbox, pairs[i].remote) })
	}
	work.Wait()
	return nil
}

// listening prints where a listener listens.
func (c *cli) listening(local net.Addr, id string, port int) error {
	if c.json() {
		return json.NewEncoder(c.stdout).Encode(map[string]any{"local_address": local.String(), "sandbox_id": id, "port": port})
	}
	_, err := fmt.Fprintf(c.stdout, "%s is port %d of %s\n", local, port, id)
	return err
}

// acceptPause is the time to the next attempt after accepting failed, for example
// because this program has too many open files.
const acceptPause = 100 * time.Millisecond

// acceptAll connects each connection of a listener to a port of the sandbox until the
// listener is closed, and waits for all of them.
func (c *cli) acceptAll(ctx context.Context, l net.Listener, sandbox *sandgate.Sandbox, port int) {
	var open sync.WaitGroup
	defer open.Wait()
	for {
		local, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			c.noticeConn(port, err)
			time.Sleep(acceptPause)
			continue
		}
		open.Go(func() {
			if err := join(ctx, local.(*net.TCPConn), sandbox, port); err != nil && ctx.Err() == nil {
				c.noticeConn(port, err)
			}
		})
	}
}

// noticeConn reports a failed connection.
func (c *cli) noticeConn(port int, err error) {
	c.noticing.Lock()
	defer c.noticing.Unlock()
	c.notice("connection to port %d: %s", port, advise(err))
}

// join relays between a local connection and a port of the sandbox until both directions
// have ended, one fails, or ctx ends.
func join(ctx context.Context, local *net.TCPConn, sandbox *sandgate.Sandbox, port int) error {
	defer func() { _ = local.Close() }()
	remote, err := sandbox.Connect(ctx, port)
	if err != nil {
		_ = local.SetLinger(0)
		return err
	}
	defer func() { _ = remote.Close() }()
	abort := func() {
		_ = local.SetLinger(0)
		_ = local.Close()
		remote.Reset()
	}
	defer context.AfterFunc(ctx, abort)()
	ended := make(chan error, 2)
	relay := func(to, from halfCloser) {
		// Larger pieces would be cut in two.
		_, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, 32_000))
		if err == nil {
			err = to.CloseWrite()
		}
		ended <- err
		if err != nil {
			abort()
		}
	}
	go relay(remote, local)
	go relay(local, remote)
	first := <-ended
	if second := <-ended; first == nil {
		first = second
	}
	if failure := (*sandgate.Error)(nil); errors.As(first, &failure) {
		return failure
	}
	// What the local program did to its own connection is no news to the user.
	return nil
}

// halfCloser is a connection whose directions end one by one.
type halfCloser interface {
	io.ReadWriter
	CloseWrite() error
}
