// Package dial connects to agents.
package dial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// AwaitAgent waits until the agent has spoken, and returns a connection that reads what
// it said. A gRPC server speaks first, so nothing needs to be sent. On an error the
// connection is closed.
func AwaitAgent(ctx context.Context, conn net.Conn) (net.Conn, error) {
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
