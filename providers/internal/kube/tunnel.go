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

// farewell is how long a command is given to end by itself after its input has
// ended. Then the stream is cut.
const farewell = 2 * time.Second

// Tunnel runs a command that speaks first, and joins its standard input and
// output to the returned connection. It returns when the first output is there
// to be read; the context bounds only that.
//
// Close ends the command's input, which must make the command end, and returns
// at once; what carried the connection goes shortly after, at the latest after
// two seconds, and Executor.Close waits for it. CloseWrite ends the input only.
// When the command ends, reads return what it wrote and then io.EOF, or an
// error with what it wrote to standard error when it failed or the stream
// broke.
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
		return nil, fmt.Errorf("exec in pod %s: %w", at, context.Cause(ctx))
	}
}

// open begins the exec.
func (e *Executor) open(ctx context.Context, at Container, command []string) (*tunnel, error) {
	t := &tunnel{
		executor: e, at: at, inbox: newInbox(), spoken: make(chan struct{}), ended: make(chan struct{}),
	}
	if !e.begin(t) {
		return nil, fmt.Errorf("exec in pod %s: %w: %w", at, net.ErrClosed, providers.ErrUnavailable)
	}
	streams := remotecommand.StreamOptions{Stdin: noInput{}, Stdout: t.inbox, Stderr: &t.stderr}
	s, err := e.dialSocket(ctx, e.url(at, command, streams).String())
	if err != nil {
		e.end(t)
		return nil, execError(ctx, at, err)
	}
	t.socket = s
	go t.run(func() error { return s.run(&output{t: t}, &t.stderr) })
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

// tunnel is the input of a command, and what it wrote.
type tunnel struct {
	executor *Executor
	at       Container
	socket   *socket
	inbox    *inbox
	stderr   tail
	once     sync.Once
	shut     atomic.Bool

	spoken chan struct{} // closed when the first output is there
	ended  chan struct{} // closed after err is set
	err    error
}

var _ net.Conn = (*tunnel)(nil)

func (t *tunnel) run(exec func() error) {
	defer t.executor.end(t)
	t.err = exec()
	close(t.ended)
	t.inbox.end()
}

// noInput says that there will be some.
type noInput struct{ io.Reader }

// output notes that there is some.
type output struct {
	t    *tunnel
	more bool
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.t.inbox.Write(p)
	if !o.more && len(p) > 0 {
		o.more = true
		close(o.t.spoken)
	}
	return n, err
}

// Read implements net.Conn.
func (t *tunnel) Read(p []byte) (int, error) {
	n, more, err := t.inbox.read(p)
	if more || err != nil {
		return n, err
	}
	if t.err != nil {
		return 0, t.endError(context.Background())
	}
	return 0, io.EOF
}

func (t *tunnel) Write(p []byte) (int, error) {
	if t.shut.Load() {
		return 0, net.ErrClosed
	}
	n, err := t.socket.Write(p)
	if err != nil && (t.shut.Load() || errors.Is(err, io.ErrClosedPipe)) {
		err = net.ErrClosed
	}
	return n, err
}

// CloseWrite ends the command's input.
func (t *tunnel) CloseWrite() error { return t.socket.CloseWrite() }

// Close implements net.Conn.
func (t *tunnel) Close() error {
	t.once.Do(func() {
		t.shut.Store(true)
		t.inbox.close()
		go t.leave()
	})
	return nil
}

// leave ends the input, and cuts what does not end then. A write that waits
// is not waited for.
func (t *tunnel) leave() {
	blocked := time.AfterFunc(farewell/10, t.socket.unblock)
	late := time.AfterFunc(farewell, func() { _ = t.socket.Close() })
	_ = t.socket.CloseWrite()
	<-t.ended
	blocked.Stop()
	late.Stop()
}

// abort cuts the stream without a farewell.
func (t *tunnel) abort() {
	_ = t.socket.Close()
	_ = t.Close()
}

func (t *tunnel) SetDeadline(at time.Time) error {
	return errors.Join(t.SetReadDeadline(at), t.SetWriteDeadline(at))
}

// SetReadDeadline implements net.Conn.
func (t *tunnel) SetReadDeadline(at time.Time) error { return t.inbox.setDeadline(at) }

// SetWriteDeadline implements net.Conn. A command that has ended takes none, and
// needs none: only what this end has closed is an error.
func (t *tunnel) SetWriteDeadline(at time.Time) error {
	if t.shut.Load() {
		return net.ErrClosed
	}
	if err := t.socket.SetWriteDeadline(at); !errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	return nil
}

func (t *tunnel) LocalAddr() net.Addr  { return address("exec") }
func (t *tunnel) RemoteAddr() net.Addr { return address(t.at.String()) }

type address string

func (address) Network() string  { return "kubernetes" }
func (a address) String() string { return string(a) }

// endError is why the command or its stream ended, with what the command said.
func (t *tunnel) endError(ctx context.Context) error {
	said := string(bytes.TrimSpace(t.stderr.bytes()))
	if said != "" {
		said = ": " + said
	}
	var exit exec.CodeExitError
	switch {
	case t.err == nil:
		return fmt.Errorf("exec in pod %s: the command ended%s: %w", t.at, said, providers.ErrUnavailable)
	case errors.As(t.err, &exit):
		return fmt.Errorf("exec in pod %s: the command ended with code %d%s: %w", t.at, exit.Code, said, providers.ErrUnavailable)
	default:
		return execError(ctx, t.at, t.err)
	}
}

// Alive reports whether a connection that Tunnel made still has its command at
// the other end.
func Alive(conn net.Conn) bool {
	t, ok := conn.(*tunnel)
	if !ok {
		return true
	}
	select {
	case <-t.ended:
		return false
	default:
		return true
	}
}
