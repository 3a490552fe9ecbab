package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/agent/fault"
)

// handoverSuffix is appended to a socket's name for the socket on which connect passes its
// own input and output to the agent. The bytes then bypass connect, whose lifetime is that
// of the connection.
const handoverSuffix = ".pipes"

// handoverWait is how long a peer may take to pass its pipes.
const handoverWait = 5 * time.Second

// pipeSize is requested for each pipe.
const pipeSize = 256 << 10

// handover is a listener whose connections are pairs of passed pipes.
type handover struct {
	socket *net.UnixListener
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// listenHandover listens on the handover socket of a path.
func listenHandover(path string) (net.Listener, error) {
	path += handoverSuffix
	if path[0] != '@' {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("remove old socket: %w", err)
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	h := &handover{socket: l, conns: make(chan net.Conn), closed: make(chan struct{})}
	go h.serve()
	return h, nil
}

func (h *handover) serve() {
	defer func() { _ = h.Close() }()
	for {
		c, err := h.socket.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // too few descriptors
			time.Sleep(connectRetry)
			continue
		}
		go func() {
			// A command may connect too. A panic must not end the agent.
			if err := fault.Catch(func() error { h.take(c); return nil }); err != nil {
				_ = c.Close()
			}
		}()
	}
}

// take accepts a peer's pipes, and closes a peer that passes anything else.
func (h *handover) take(c *net.UnixConn) {
	conn, err := takePipes(c)
	if err != nil {
		_ = c.Close()
		return
	}
	select {
	case h.conns <- conn:
	case <-h.closed:
		_ = conn.Close()
	}
}

func (h *handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

func (h *handover) Close() error {
	var err error
	h.once.Do(func() {
		close(h.closed)
		err = h.socket.Close()
	})
	return err
}

func (h *handover) Addr() net.Addr { return h.socket.Addr() }

func takePipes(c *net.UnixConn) (net.Conn, error) {
	if err := c.SetReadDeadline(time.Now().Add(handoverWait)); err != nil {
		return nil, err
	}
	control := make([]byte, unix.CmsgSpace(2*4))
	_, n, _, _, err := c.ReadMsgUnix(make([]byte, 1), control)
	if err != nil {
		return nil, err
	}
	fds, err := rightsIn(control[:n])
	if err == nil {
		err = errors.Join(readyPipes(fds), c.SetReadDeadline(time.Time{}))
	}
	if err != nil {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		return nil, err
	}
	p := &pipes{in: os.NewFile(uintptr(fds[0]), "in"), out: os.NewFile(uintptr(fds[1]), "out"), guard: c}
	go p.watch()
	return p, nil
}

// readyPipes makes two pipes non-blocking, as Go's poller requires.
func readyPipes(fds []int) error {
	if len(fds) != 2 || !isPipe(fds[0]) || !isPipe(fds[1]) {
		return errors.New("not two pipes")
	}
	for _, fd := range fds {
		if err := unix.SetNonblock(fd, true); err != nil {
			return err
		}
		// For fewer system calls; the kernel may refuse.
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, pipeSize)
	}
	return nil
}

func rightsIn(control []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, err
	}
	var all []int
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
		}
		all = append(all, fds...)
	}
	return all, nil
}

func isPipe(fd int) bool {
	var s unix.Stat_t
	return unix.Fstat(fd, &s) == nil && s.Mode&unix.S_IFMT == unix.S_IFIFO
}

// pipes is a connection over two passed pipes. It ends with the process that passed them.
type pipes struct {
	in, out *os.File
	guard   *net.UnixConn
	once    sync.Once
}

func (p *pipes) watch() {
	_, _ = p.guard.Read(make([]byte, 1))
	_ = p.Close()
}

func (p *pipes) Read(b []byte) (int, error)  { return p.in.Read(b) }
func (p *pipes) Write(b []byte) (int, error) { return p.out.Write(b) }

func (p *pipes) Close() error {
	var err error
	p.once.Do(func() {
		// The guard last: connect ends with it, and everything must be written by then.
		err = errors.Join(p.in.Close(), p.out.Close(), p.guard.Close())
	})
	return err
}

func (p *pipes) LocalAddr() net.Addr  { return p.guard.LocalAddr() }
func (p *pipes) RemoteAddr() net.Addr { return p.guard.RemoteAddr() }

func (p *pipes) SetDeadline(t time.Time) error {
	return errors.Join(p.in.SetReadDeadline(t), p.out.SetWriteDeadline(t))
}

func (p *pipes) SetReadDeadline(t time.Time) error  { return p.in.SetReadDeadline(t) }
func (p *pipes) SetWriteDeadline(t time.Time) error { return p.out.SetWriteDeadline(t) }

// handOver passes this process's input and output to the agent, and returns when the agent
// has closed them. It returns false if no agent accepts them.
func handOver(path string, in, out int) bool {
	if !isPipe(in) || !isPipe(out) {
		return false
	}
	guard, err := dialOnce(path + handoverSuffix)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(guard) }()
	if unix.Sendmsg(guard, []byte{0}, unix.UnixRights(in, out), nil, 0) != nil {
		return false
	}
	_, _ = readSome(guard, make([]byte, 1))
	return true
}
