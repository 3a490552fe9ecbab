package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/moby/moby/client"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/directory"
)

// Dial connects to the agent inside.
func (p *Provider) Dial(ctx context.Context, name string) (net.Conn, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("dial %s: %w", name, context.Cause(ctx))
	}
	d := p.layout.Sandbox(name)
	rec, err := readRecord(d)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", name, err)
	}
	if rec.Phase == directory.Active {
		conn, err := p.open(ctx, d, rec)
		if err == nil {
			return conn, nil
		}
		info, observeErr := p.observe(ctx, name, rec)
		if observeErr != nil || info.State == providers.StateActive {
			return nil, fmt.Errorf("dial %s: %w: %w", name, errors.Join(context.Cause(ctx), err), providers.ErrUnavailable)
		}
		return nil, providers.NotActive(info, "dial %s: it is %s", name, info.Status())
	}
	info := p.infoOf(name, rec)
	return nil, providers.NotActive(info, "dial %s: it is %s", name, info.Status())
}

// open makes a new connection by the sandbox's transport.
func (p *Provider) open(ctx context.Context, d directory.Dir, rec *record) (net.Conn, error) {
	if rec.Transport == TransportSocket {
		return dialSocket(ctx, socketIn(d), socketName)
	}
	made, err := p.docker.ExecCreate(ctx, rec.Container, client.ExecCreateOptions{
		AttachStdin: true, AttachStdout: true, AttachStderr: true, Cmd: []string{agentPath, "connect"},
	})
	if err != nil {
		return nil, err
	}
	stream, err := p.docker.ExecAttach(ctx, made.ID, client.ExecAttachOptions{})
	if err != nil {
		return nil, err
	}
	return newExecConn(stream.HijackedResponse), nil
}

// awaitByte waits until the agent has spoken, and returns a connection that reads
// what it said. A gRPC server speaks first, so nothing needs to be sent.
func awaitByte(ctx context.Context, conn net.Conn) (net.Conn, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	first := make([]byte, 64)
	n, err := conn.Read(first)
	if !stop() {
		err = context.Cause(ctx)
	} else if errors.Is(err, io.EOF) {
		err = fmt.Errorf("the agent closed the connection: %w", io.ErrUnexpectedEOF)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &startedConn{Conn: conn, first: first[:n]}, nil
}

// startedConn is a connection whose first bytes have been read.
type startedConn struct {
	net.Conn
	first []byte
}

func (c *startedConn) Read(b []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(b, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}
