package sshserver

import (
	"context"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// Bounds of the environment that a client sends.
const (
	maxVariables = 64
	maxValue     = 4096 // bytes
)

// session is one channel for a command, a shell or SFTP.
type session struct {
	conn    *conn
	channel ssh.Channel
	// ctx ends when the peer has closed the channel or the connection has ended.
	ctx context.Context //nolint:containedctx // As of the conn.

	env      map[string]string
	terminal *sandgate.TerminalSize // nil: none
	busy     bool                   // a command, a shell or SFTP was requested
	next     func()                 // runs when the request was answered; nil: nothing
	work     sync.WaitGroup
	ready    chan struct{}     // closed when the command has started or failed
	process  *sandgate.Process // set before ready is closed; nil: there is none
}

// Payloads of requests (RFC 4254, section 6).
type (
	ptyRequest struct {
		Term          string
		Columns, Rows uint32
		Width, Height uint32
		Modes         string
	}
	resizeRequest struct {
		Columns, Rows uint32
		Width, Height uint32
	}
	envRequest struct{ Name, Value string }
	// textRequest is that of exec, subsystem and signal.
	textRequest struct{ Text string }
	exitStatus  struct{ Code uint32 }
	exitSignal  struct {
		Signal     string
		CoreDumped bool
		Message    string
		Language   string
	}
)

// session serves a session channel until the peer has closed it.
func (c *conn) session(incoming ssh.NewChannel) {
	channel, requests, err := incoming.Accept()
	if err != nil {
		return
	}
	ctx, cancel := context.WithCancelCause(c.ctx)
	s := &session{conn: c, channel: channel, ctx: ctx, env: map[string]string{}, ready: make(chan struct{})}
	for request := range requests {
		accepted := s.request(request)
		if request.WantReply {
			_ = request.Reply(accepted, nil)
		}
		if work := s.next; work != nil {
			s.next = nil
			s.work.Go(func() {
				work()
				_ = s.channel.Close()
			})
		}
	}
	cancel(errDisconnected)
	s.work.Wait()
}

// request handles one request and reports whether it was accepted.
func (s *session) request(request *ssh.Request) bool {
	switch request.Type {
	case "env":
		return s.setEnv(request.Payload)
	case "pty-req":
		return s.setTerminal(request.Payload)
	case "window-change":
		return s.resize(request.Payload)
	case "signal":
		return s.signal(request.Payload)
	case "shell":
		return s.begin(func() { s.run(shell) })
	case "exec":
		var command textRequest
		if ssh.Unmarshal(request.Payload, &command) != nil {
			return false
		}
		return s.begin(func() { s.run(command.Text) })
	case "subsystem":
		var name textRequest
		if ssh.Unmarshal(request.Payload, &name) != nil || name.Text != "sftp" {
			return false
		}
		return s.begin(s.sftp)
	case "auth-agent-req@openssh.com":
		// OpenSSH does not tell its user that this was refused. Programs that read this
		// stream have no terminal.
		if s.terminal != nil && !s.busy {
			s.notice("the forwarding of your SSH agent was refused: what runs in a sandbox must not use your keys")
		}
	}
	return false
}

// begin sets what the session is for, once. It runs after the answer to the request: a
// channel that was closed cannot have one.
func (s *session) begin(work func()) bool {
	if s.busy {
		return false
	}
	s.busy, s.next = true, work
	return true
}

// setEnv accepts variables of the client's language and terminal. Others could change
// what a command does, and OpenSSH sends them without asking.
func (s *session) setEnv(payload []byte) bool {
	var v envRequest
	if ssh.Unmarshal(payload, &v) != nil || s.busy || len(s.env) == maxVariables || len(v.Value) > maxValue || strings.Contains(v.Value, "\x00") {
		return false
	}
	switch v.Name {
	case "LANG", "LANGUAGE", "COLORTERM", "NO_COLOR", "TZ":
	default:
		if suffix, ok := strings.CutPrefix(v.Name, "LC_"); !ok || strings.ContainsAny(suffix, "=\x00") || len(suffix) > 64 {
			return false
		}
	}
	s.env[v.Name] = v.Value
	return true
}

func (s *session) setTerminal(payload []byte) bool {
	var pty ptyRequest
	if ssh.Unmarshal(payload, &pty) != nil || s.busy || s.terminal != nil || len(pty.Term) > 256 || strings.Contains(pty.Term, "\x00") {
		return false
	}
	if pty.Term != "" {
		s.env["TERM"] = pty.Term
	}
	s.terminal = terminalSize(pty.Rows, pty.Columns)
	return true
}

// terminalSize returns a valid size: 24 by 80 for what the client does not know.
func terminalSize(rows, columns uint32) *sandgate.TerminalSize {
	valid := func(n, unknown uint32) int32 {
		if n == 0 {
			n = unknown
		}
		return int32(min(n, 65535))
	}
	return &sandgate.TerminalSize{Rows: valid(rows, 24), Columns: valid(columns, 80)}
}

func (s *session) resize(payload []byte) bool {
	var to resizeRequest
	if ssh.Unmarshal(payload, &to) != nil || s.terminal == nil {
		return false
	}
	size := terminalSize(to.Rows, to.Columns)
	if !s.busy {
		s.terminal = size
		return true
	}
	return s.control(func(ctx context.Context, p *sandgate.Process) error {
		return p.Resize(ctx, int(size.GetRows()), int(size.GetColumns()))
	})
}

// signal sends a signal to the command's process group, as sshd does.
func (s *session) signal(payload []byte) bool {
	var name textRequest
	if ssh.Unmarshal(payload, &name) != nil || !s.busy {
		return false
	}
	return s.control(func(ctx context.Context, p *sandgate.Process) error {
		return p.Signal(ctx, "SIG"+name.Text, sandgate.Group)
	})
}

// control calls f with the command once it has started. A command that does not start in
// time is not controlled: the connection's other channels wait meanwhile.
func (s *session) control(f func(context.Context, *sandgate.Process) error) bool {
	ctx, cancel := context.WithTimeout(s.ctx, s.conn.server.timing.control)
	defer cancel()
	select {
	case <-s.ready:
		return s.process != nil && f(ctx, s.process) == nil
	case <-ctx.Done():
		return false
	}
}
