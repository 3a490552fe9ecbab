package kube

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"

	"k8s.io/client-go/tools/remotecommand"
)

var errTunnelClosed = errors.New("the tunnel was closed")

// spdy is an exec by SPDY. Its standard input is a pipe, which brings the
// deadlines.
type spdy struct {
	net.Conn
	cancel context.CancelCauseFunc
}

func (s *spdy) CloseWrite() error { return s.Conn.Close() }

func (s *spdy) unblock() { _ = s.Conn.Close() }

func (s *spdy) Close() error {
	s.cancel(errTunnelClosed)
	return s.Conn.Close()
}

// input ends like a file when our end of the pipe is closed.
type input struct{ conn net.Conn }

func (r input) Read(p []byte) (int, error) {
	n, err := r.conn.Read(p)
	if err != nil {
		err = io.EOF
	}
	return n, err
}

func (e *Executor) streamSPDY(ctx context.Context, at Container, command []string, options remotecommand.StreamOptions) error {
	executor, err := remotecommand.NewSPDYExecutor(e.config, http.MethodPost, e.url(at, command, options))
	if err != nil {
		return err
	}
	return executor.StreamWithContext(ctx, options)
}
