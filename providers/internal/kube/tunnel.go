package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"

	"github.com/sandgate/sandgate/providers"
)

// closeGrace is how long a command may take to end after the end of its input.
// Then the stream is cut.
const closeGrace = 2 * time.Second

// Tunnel runs a command that sends the first byte, and joins its standard input
// and output to the returned connection. It returns when the first output has
// arrived; the context bounds only that.
//
// Close ends the command's input, which must make the command end, and returns at
// once. The stream is closed when the command ends, after two seconds at the
// latest; Executor.Close waits for it. CloseWrite ends the input only. When the
// command ends, reads return its remaining output and then io.EOF, or an error
// with its standard error output if it failed or the stream broke.
func (e *Executor) Tunnel(ctx context.Context, at Container, command []string) (net.Conn, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("exec in pod %s: %w", at, context.Cause(ctx))
	}
	t, err := e.open(ctx, at, command)
	if err != nil {
		return nil, err
	}
	select {
	case <-t.spoken:
		return t, nil
	case <-t.ended:
		_ = t.Close()
		return nil, t.endError(ctx)
	case <-ctx.Done():
		t.abort()
		_ = t.Close()
		return nil, fmt.Errorf("exec in pod %s: %w", at, context.Cause(ctx))
	}
}

// open starts the exec.
func (e *Executor) open(ctx context.Context, at Container, command []string) (*tunnel, error) {
	stdin, input := net.Pipe()
	stdout, output := net.Pipe()
	life, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	t := &tunnel{
		at: at, stdin: input, stdout: stdout, cancel: cancel,
		spoken: make(chan struct{}), ended: make(chan struct{}),
	}
	if !e.begin(t) {
		cancel(errTunnelClosed)
		return nil, fmt.Errorf("exec in pod %s: %w: %w", at, net.ErrClosed, providers.ErrUnavailable)
	}
	go func() {
		defer e.end(t)
		t.err = e.stream(life, ctx, at, command, remotecommand.StreamOptions{
			Stdin: commandInput{stdin}, Stdout: &commandOutput{pipe: output, spoken: t.spoken}, Stderr: &t.stderr,
		})
		close(t.ended)
		_, _ = stdin.Close(), output.Close()
		cancel(nil)
	}()
	return t, nil
}

func (e *Executor) begin(t *tunnel) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing {
		return false
	}
	e.tunnels[t] = struct{}{}
	e.pending.Add(1)
	return true
}

func (e *Executor) end(t *tunnel) {
	e.mu.Lock()
	delete(e.tunnels, t)
	e.mu.Unlock()
	e.pending.Done()
}

var errTunnelClosed = errors.New("the tunnel was closed")

// tunnel is the standard input and output of a command.
type tunnel struct {
	at     Container
	stdin  net.Conn
	stdout net.Conn
	stderr tail
	cancel context.CancelCauseFunc
	once   sync.Once
	shut   atomic.Bool

	spoken chan struct{} // closed when the first output arrives
	ended  chan struct{} // closed after err is set
	err    error
}

var _ net.Conn = (*tunnel)(nil)

// commandInput ends like a file, also when the stream has ended first.
type commandInput struct{ pipe net.Conn }

func (i commandInput) Read(p []byte) (int, error) {
	n, err := i.pipe.Read(p)
	if err != nil {
		err = io.EOF
	}
	return n, err
}

// commandOutput reports the first output. Output that arrives after the tunnel
// was closed is discarded.
type commandOutput struct {
	pipe   net.Conn
	spoken chan struct{}
	more   bool
}

func (o *commandOutput) Write(p []byte) (int, error) {
	if !o.more && len(p) > 0 {
		o.more = true
		close(o.spoken)
	}
	if n, err := o.pipe.Write(p); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		return n, err
	}
	return len(p), nil
}

// Read implements net.Conn.
func (t *tunnel) Read(p []byte) (int, error) {
	n, err := t.stdout.Read(p)
	switch {
	case errors.Is(err, io.ErrClosedPipe):
		err = net.ErrClosed
	case errors.Is(err, io.EOF) && t.err != nil:
		err = t.endError(context.Background())
	}
	return n, err
}

// Write implements net.Conn.
func (t *tunnel) Write(p []byte) (int, error) {
	n, err := t.stdin.Write(p)
	if errors.Is(err, io.ErrClosedPipe) {
		err = net.ErrClosed
	}
	return n, err
}

// CloseWrite ends the command's input.
func (t *tunnel) CloseWrite() error { return t.stdin.Close() }

// Close implements net.Conn.
func (t *tunnel) Close() error {
	t.once.Do(func() {
		t.shut.Store(true)
		_, _ = t.stdin.Close(), t.stdout.Close()
		late := time.AfterFunc(closeGrace, t.abort)
		go func() {
			<-t.ended
			late.Stop()
		}()
	})
	return nil
}

// abort breaks the stream without waiting for the command.
func (t *tunnel) abort() { t.cancel(errTunnelClosed) }

func (t *tunnel) SetDeadline(at time.Time) error {
	return errors.Join(t.SetReadDeadline(at), t.SetWriteDeadline(at))
}

// SetReadDeadline implements net.Conn.
func (t *tunnel) SetReadDeadline(at time.Time) error {
	return t.deadlineError(t.stdout.SetReadDeadline(at))
}

// SetWriteDeadline implements net.Conn.
func (t *tunnel) SetWriteDeadline(at time.Time) error {
	return t.deadlineError(t.stdin.SetWriteDeadline(at))
}

// deadlineError accepts a deadline for a command that has ended: only a tunnel
// that was closed from this end has no deadlines.
func (t *tunnel) deadlineError(err error) error {
	switch {
	case t.shut.Load():
		return net.ErrClosed
	case errors.Is(err, io.ErrClosedPipe):
		return nil
	default:
		return err
	}
}

func (t *tunnel) LocalAddr() net.Addr  { return address("exec") }
func (t *tunnel) RemoteAddr() net.Addr { return address(t.at.String()) }

type address string

func (address) Network() string  { return "kubernetes" }
func (a address) String() string { return string(a) }

// endError is why the command or its stream ended, with the command's standard
// error output.
func (t *tunnel) endError(ctx context.Context) error {
	stderr := string(bytes.TrimSpace(t.stderr.bytes()))
	if stderr != "" {
		stderr = ": " + stderr
	}
	var exit exec.CodeExitError
	switch {
	case t.err == nil:
		return fmt.Errorf("exec in pod %s: the command ended%s: %w", t.at, stderr, providers.ErrUnavailable)
	case errors.As(t.err, &exit):
		return fmt.Errorf("exec in pod %s: the command ended with code %d%s: %w", t.at, exit.Code, stderr, providers.ErrUnavailable)
	default:
		return execError(ctx, t.at, t.err)
	}
}
