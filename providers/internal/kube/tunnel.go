package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"

	"github.com/sandgate/sandgate/providers"
)

// farewell is how long a command is given to end by itself after its input has
// ended. Then the stream is cut.
const farewell = 2 * time.Second

var errTunnelClosed = errors.New("the tunnel was closed")

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
		t.abort(context.Cause(ctx))
		return nil, fmt.Errorf("exec in pod %s: %w", at, context.Cause(ctx))
	}
}

func (e *Executor) open(ctx context.Context, at Container, command []string) (*tunnel, error) {
	stdin, ourStdin := net.Pipe()
	stdout, ourStdout := net.Pipe()
	life, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	t := &tunnel{
		executor: e, at: at, in: ourStdin, out: ourStdout, cancel: cancel,
		spoken: make(chan struct{}), ended: make(chan struct{}),
	}
	if !e.begin(t) {
		cancel(nil)
		return nil, fmt.Errorf("exec in pod %s: %w: %w", at, net.ErrClosed, providers.ErrUnavailable)
	}
	go t.run(life, command, stdin, stdout)
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

// tunnel is two pipes, with the exec at their other ends. net.Pipe brings the
// deadlines.
type tunnel struct {
	executor *Executor
	at       Container
	in, out  net.Conn
	cancel   context.CancelCauseFunc
	stderr   tail
	once     sync.Once

	spoken chan struct{} // closed when the first output is there
	ended  chan struct{} // closed after err is set
	err    error

	// head is the first output. It does not wait in the pipe for a reader, so
	// that the end of the command can be seen behind it.
	mu       sync.Mutex
	head     []byte
	shut     bool
	deadline time.Time // of reads
}

var _ net.Conn = (*tunnel)(nil)

func (t *tunnel) run(ctx context.Context, command []string, stdin, stdout net.Conn) {
	defer t.executor.end(t)
	err := t.executor.stream(ctx, t.at, command, remotecommand.StreamOptions{
		Stdin: input{stdin}, Stdout: &output{t: t, pipe: stdout}, Stderr: &t.stderr,
	})
	t.err = err
	close(t.ended)
	// The copying ends of both pipes may still wait for ours.
	_ = stdin.Close()
	_ = stdout.Close()
	t.cancel(nil)
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

// output keeps the first bytes and passes on the rest.
type output struct {
	t    *tunnel
	pipe io.Writer
	more bool
}

func (o *output) Write(p []byte) (int, error) {
	if !o.more && len(p) > 0 {
		o.more = true
		o.t.mu.Lock()
		o.t.head = append([]byte(nil), p...)
		o.t.mu.Unlock()
		close(o.t.spoken)
		return len(p), nil
	}
	n, err := o.pipe.Write(p)
	if errors.Is(err, io.ErrClosedPipe) {
		// Nobody reads any more: what still comes is let go.
		return len(p), nil
	}
	return n, err
}

// takeHead reads from the first output, as far as the deadline allows.
func (t *tunnel) takeHead(p []byte) (n int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	late := !t.deadline.IsZero() && !time.Now().Before(t.deadline)
	if len(t.head) == 0 || late || t.shut {
		return 0, false
	}
	n = copy(p, t.head)
	t.head = t.head[n:]
	return n, true
}

func (t *tunnel) Read(p []byte) (int, error) {
	if n, ok := t.takeHead(p); ok {
		return n, nil
	}
	n, err := t.out.Read(p)
	if errors.Is(err, io.EOF) {
		// Our own end is open, so the command or its stream has ended.
		<-t.ended
		if t.err != nil {
			err = t.endError(context.Background())
		}
	}
	return n, err
}

func (t *tunnel) Write(p []byte) (int, error) {
	n, err := t.in.Write(p)
	if err != nil && errors.Is(err, io.ErrClosedPipe) {
		err = net.ErrClosed
	}
	return n, err
}

// CloseWrite ends the command's input.
func (t *tunnel) CloseWrite() error { return t.in.Close() }

// Close implements net.Conn.
func (t *tunnel) Close() error {
	t.once.Do(func() {
		t.mu.Lock()
		t.shut = true
		t.mu.Unlock()
		_ = t.in.Close()
		_ = t.out.Close()
		timer := time.AfterFunc(farewell, func() { t.cancel(errTunnelClosed) })
		go func() {
			<-t.ended
			timer.Stop()
		}()
	})
	return nil
}

// abort cuts the stream without a farewell.
func (t *tunnel) abort(cause error) {
	t.cancel(cause)
	_ = t.Close()
}

func (t *tunnel) SetDeadline(at time.Time) error {
	return errors.Join(t.SetReadDeadline(at), t.SetWriteDeadline(at))
}

// SetReadDeadline implements net.Conn.
func (t *tunnel) SetReadDeadline(at time.Time) error {
	t.mu.Lock()
	t.deadline = at
	t.mu.Unlock()
	return t.deadlineError(t.out.SetReadDeadline(at))
}

// SetWriteDeadline implements net.Conn.
func (t *tunnel) SetWriteDeadline(at time.Time) error {
	return t.deadlineError(t.in.SetWriteDeadline(at))
}

// deadlineError: a pipe whose other end is closed takes no deadline, and needs
// none. Only what this end has closed is an error.
func (t *tunnel) deadlineError(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.shut:
		return net.ErrClosed
	case errors.Is(err, io.ErrClosedPipe):
		return nil
	}
	return err
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
