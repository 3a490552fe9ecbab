package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/client-go/transport/websocket"
	"k8s.io/client-go/util/exec"
)

const (
	// socketChunk is a message's content: with what goes before it, it fills two
	// records of TLS.
	socketChunk = 32<<10 - 16
	// socketPing is how often the API server is asked for a sign of life, and
	// socketPatience how long one may take.
	socketPing     = 5 * time.Second
	socketPatience = 61 * time.Second
	// binaryMessage, pingMessage and normalClosure are WebSocket's own.
	binaryMessage = 2
	pingMessage   = 9
	normalClosure = 1000
)

// wsConn is what is needed of a WebSocket connection.
type wsConn interface {
	NextReader() (int, io.Reader, error)
	NextWriter(kind int) (io.WriteCloser, error)
	WriteControl(kind int, data []byte, deadline time.Time) error
	SetReadDeadline(time.Time) error
	SetPongHandler(func(string) error)
	CloseHandler() func(int, string) error
	SetCloseHandler(func(int, string) error)
	Close() error
}

// socket is an exec by WebSocket, in the protocol v5.channel.k8s.io: the first
// byte of each message names its stream. It hands what it reads and what is
// written straight on, where remotecommand has a pipe and a goroutine on each
// side of each stream.
type socket struct {
	conn wsConn

	mu   sync.Mutex // of writing
	shut bool       // the input has ended

	clock    sync.Mutex
	writing  bool // a write has begun and not ended
	deadline time.Time
	alarm    *time.Timer

	normal bool   // the other side has closed as it should; reading only
	status []byte // of the command; reading only
}

func (e *Executor) dialSocket(ctx context.Context, target string) (*socket, error) {
	transport, holder, err := websocket.RoundTripperFor(e.config)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, err
	}
	conn, err := websocket.Negotiate(transport, holder, request, remotecommand.StreamProtocolV5Name)
	if err != nil {
		return nil, err
	}
	return &socket{conn: conn}, nil
}

// run passes on what comes until the end, and says how the command ended.
func (s *socket) run(stdout, stderr io.Writer) error {
	alive := func(string) error { return s.conn.SetReadDeadline(time.Now().Add(socketPatience)) }
	s.conn.SetPongHandler(alive)
	answer := s.conn.CloseHandler()
	s.conn.SetCloseHandler(func(code int, text string) error {
		s.normal = code == normalClosure
		return answer(code, text)
	})
	if err := alive(""); err != nil {
		return err
	}
	stop := make(chan struct{})
	var pinging sync.WaitGroup
	pinging.Go(func() { s.ping(stop) })
	err := s.receive(stdout, stderr)
	close(stop)
	_ = s.conn.Close()
	pinging.Wait()
	switch {
	case s.status != nil:
		return ended(s.status)
	case s.normal:
		return nil
	default:
		return err
	}
}

func (s *socket) receive(stdout, stderr io.Writer) error {
	buffer := make([]byte, socketChunk)
	for {
		kind, message, err := s.conn.NextReader()
		if err != nil {
			return fmt.Errorf("read from the API server: %w", err)
		}
		if kind != binaryMessage {
			return fmt.Errorf("a message of kind %d from the API server", kind)
		}
		if _, err := io.ReadFull(message, buffer[:1]); err != nil {
			return fmt.Errorf("read from the API server: %w", err)
		}
		to := io.Discard
		switch buffer[0] {
		case remotecommand.StreamStdOut:
			to = stdout
		case remotecommand.StreamStdErr:
			to = stderr
		case remotecommand.StreamErr:
			to = (*statusWriter)(s)
		}
		if _, err := io.CopyBuffer(struct{ io.Writer }{to}, message, buffer); err != nil {
			return fmt.Errorf("read from the API server: %w", err)
		}
	}
}

// statusLimit is far above what the API server says of a command's end.
const statusLimit = 64 << 10

type statusWriter socket

func (s *statusWriter) Write(p []byte) (int, error) {
	if len(s.status)+len(p) > statusLimit {
		return 0, errors.New("the API server says too much of the command's end")
	}
	s.status = append(s.status, p...)
	return len(p), nil
}

// ended reads what the API server says of a command's end.
func ended(text []byte) error {
	var status metav1.Status
	if err := json.Unmarshal(text, &status); err != nil {
		return fmt.Errorf("what the API server says of the command's end: %w", err)
	}
	if status.Status == metav1.StatusSuccess {
		return nil
	}
	if status.Reason == remotecommand.NonZeroExitCodeReason && status.Details != nil {
		for _, cause := range status.Details.Causes {
			if code, err := strconv.ParseUint(cause.Message, 10, 8); err == nil && cause.Type == remotecommand.ExitCodeCauseType {
				return exec.CodeExitError{Err: fmt.Errorf("the command ended with code %d", code), Code: int(code)}
			}
		}
	}
	return errors.New(status.Message)
}

func (s *socket) ping(stop <-chan struct{}) {
	tick := time.NewTicker(socketPing)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case now := <-tick.C:
			// Without an answer reading ends, so that an error needs no answer here.
			_ = s.conn.WriteControl(pingMessage, nil, now.Add(socketPing))
		}
	}
}

// Write writes to the command's standard input.
func (s *socket) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut {
		return 0, net.ErrClosed
	}
	if !s.begin() {
		return 0, os.ErrDeadlineExceeded
	}
	n, err := s.send(p)
	if late := s.done(); err != nil && late {
		err = os.ErrDeadlineExceeded
	}
	return n, err
}

func (s *socket) send(p []byte) (int, error) {
	for n := 0; n < len(p); {
		part := p[n:min(len(p), n+socketChunk)]
		if err := s.message(remotecommand.StreamStdIn, part); err != nil {
			return n, err
		}
		n += len(part)
	}
	return len(p), nil
}

func (s *socket) message(stream byte, data []byte) error {
	w, err := s.conn.NextWriter(binaryMessage)
	if err != nil {
		return err
	}
	if _, err := w.Write([]byte{stream}); err != nil {
		return err
	}
	if _, err := w.Write(data); err != nil {
		return err
	}
	return w.Close()
}

// begin reports whether there is time left to write.
func (s *socket) begin() bool {
	s.clock.Lock()
	defer s.clock.Unlock()
	s.writing = s.deadline.IsZero() || time.Now().Before(s.deadline)
	return s.writing
}

// done reports whether there is none left.
func (s *socket) done() (late bool) {
	s.clock.Lock()
	defer s.clock.Unlock()
	s.writing = false
	return !s.deadline.IsZero() && !time.Now().Before(s.deadline)
}

// Close ends it without a farewell.
func (s *socket) Close() error { return s.conn.Close() }

// SetWriteDeadline also ends a write that waits, and with it the connection, as
// it does with TLS.
func (s *socket) SetWriteDeadline(at time.Time) error {
	s.clock.Lock()
	defer s.clock.Unlock()
	if s.alarm != nil {
		s.alarm.Stop()
	}
	s.deadline = at
	if !at.IsZero() {
		s.alarm = time.AfterFunc(time.Until(at), s.unblock)
	}
	return nil
}

// unblock ends a write that waits.
func (s *socket) unblock() {
	s.clock.Lock()
	defer s.clock.Unlock()
	if s.writing {
		_ = s.conn.Close()
	}
}

// CloseWrite ends the command's standard input.
func (s *socket) CloseWrite() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut {
		return nil
	}
	s.shut = true
	return s.message(remotecommand.StreamClose, []byte{remotecommand.StreamStdIn})
}
