package sshserver

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/crypto/ssh"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/cmd/sandgate/internal/terminal"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// shell is the command of a shell session. It is no login shell: /etc/profile of many
// images resets the PATH that the image has.
const shell = "command -v bash >/dev/null 2>&1 && exec bash; exec sh"

// failed is the exit status when Sandgate itself failed, as of the command line.
const failed = 125

// inputSize is how much input goes to a command in one call.
const inputSize = 256 << 10

// run runs a command and reports its end.
func (s *session) run(command string) {
	if command == "" {
		command = ":" // as a shell does
	}
	process, err := s.conn.sandbox.Start(s.ctx, sandgate.ExecuteRequest{
		Shell: command, Env: s.env, StdinOpen: true, Terminal: s.terminal,
	})
	s.process = process
	close(s.ready)
	if err != nil {
		s.fail(err)
		return
	}
	defer process.Close()
	// It ends when the peer has closed the channel; what it waits for then is over.
	s.work.Go(func() { s.feed(process) })
	for event, err := range process.Events() {
		if err == nil {
			err = s.print(event)
		}
		if err != nil {
			s.fail(err)
			return
		}
	}
	s.exit(process.Exit())
}

// feed sends the channel's input to the command.
func (s *session) feed(process *sandgate.Process) {
	buffer := make([]byte, inputSize)
	for {
		n, err := s.channel.Read(buffer)
		if n > 0 && process.WriteStdin(s.ctx, buffer[:n]) != nil {
			// The command has ended, or has closed its input. A failure of the connection
			// shows in its events, too.
			return
		}
		if errors.Is(err, io.EOF) && ended(s.channel) {
			_ = process.CloseStdin(s.ctx)
		}
		if err != nil {
			return
		}
	}
}

func (s *session) print(event sandgate.Event) error {
	var err error
	switch {
	case event.Output != nil && event.Output.GetStream() == sandgate.Stderr:
		_, err = s.channel.Stderr().Write(event.Output.GetData())
	case event.Output != nil:
		_, err = s.channel.Write(event.Output.GetData())
	case event.Gap != nil:
		s.notice(fmt.Sprintf("%d bytes of output were dropped before they could be read", event.Gap.GetEnd()-event.Gap.GetStart()))
	}
	return err
}

// exit reports how the command ended.
func (s *session) exit(e *sandgate.Exited) {
	text := map[sandgate.ExitReason]string{
		sandboxv1.ExitReason_EXIT_REASON_TIMED_OUT:       "the command timed out; it and its descendants were killed (TIMED_OUT)",
		sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY:   "the command ran out of memory (OUT_OF_MEMORY)",
		sandboxv1.ExitReason_EXIT_REASON_SANDBOX_STOPPED: "the sandbox was stopped while the command ran (SANDBOX_STOPPED)",
		sandboxv1.ExitReason_EXIT_REASON_LOST:            "the sandbox's agent died, so the exit status is unknown (LOST)",
	}[e.GetReason()]
	if text != "" {
		s.notice(text)
	}
	_ = s.channel.CloseWrite()
	switch e.GetReason() {
	case sandboxv1.ExitReason_EXIT_REASON_SIGNALED, sandboxv1.ExitReason_EXIT_REASON_KILLED, sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY:
		if e.ExitCode == nil {
			end := exitSignal{Signal: signalName(e.GetSignal()), Message: terminal.Clean(e.GetMessage())}
			_, _ = s.channel.SendRequest("exit-signal", false, ssh.Marshal(end))
			return
		}
		s.status(int(e.GetExitCode()))
	default:
		s.status(sandgate.ExitCode(e))
	}
}

// signalName returns a signal's name in the protocol: without SIG, and with a suffix if
// RFC 4254 does not list it.
func signalName(name string) string {
	switch name = strings.TrimPrefix(name, "SIG"); name {
	case "ABRT", "ALRM", "FPE", "HUP", "ILL", "INT", "KILL", "PIPE", "QUIT", "SEGV", "TERM", "USR1", "USR2":
		return name
	case "":
		return "KILL"
	}
	return name + "@sandgate"
}

func (s *session) status(code int) {
	_, _ = s.channel.SendRequest("exit-status", false, ssh.Marshal(exitStatus{uint32(code)}))
}

// fail reports why a command could not be started or followed.
func (s *session) fail(err error) {
	s.notice(err.Error())
	s.status(failed)
}

// notice prints a line on the session's standard error.
func (s *session) notice(text string) {
	end := "\n"
	if s.terminal != nil {
		end = "\r\n"
	}
	_, _ = io.WriteString(s.channel.Stderr(), "sandgate: "+terminal.Clean(text)+end)
}
