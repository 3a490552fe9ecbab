package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"syscall"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/cmd/sandgate/internal/terminal"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// execute runs a command as flags describe it and returns its exit code.
func (c *cli) execute(ctx context.Context, sandbox *sandgate.Sandbox, request sandgate.ExecuteRequest, flags *commandFlags) error {
	var screen *terminal.Terminal
	if flags.tty {
		screen = terminal.Open(c.stdin, c.stdout)
		request.Terminal = screen.Size()
	}
	process, err := sandbox.Start(ctx, request)
	if err != nil {
		return err
	}
	if request.Detach {
		return c.detached(process)
	}
	defer process.Close()
	if flags.tty && flags.interactive {
		restore, err := screen.Raw()
		if err != nil {
			return err
		}
		defer restore()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if flags.tty {
		go screen.Follow(ctx, process)
	}
	if flags.interactive {
		go c.feed(ctx, process)
	}
	return c.follow(process)
}

// detached prints the id of a command that keeps running.
func (c *cli) detached(process *sandgate.Process) error {
	if c.json() {
		return c.message(process.Started())
	}
	_, err := fmt.Fprintln(c.stdout, process.ID())
	return err
}

// follow prints a command's output as it arrives and returns its exit code.
func (c *cli) follow(process *sandgate.Process) error {
	var stdout, stderr []byte
	for event, err := range process.Events() {
		if err != nil {
			return err
		}
		switch {
		case event.Output != nil && c.json():
			if event.Output.GetStream() == sandgate.Stderr {
				stderr = append(stderr, event.Output.GetData()...)
			} else {
				stdout = append(stdout, event.Output.GetData()...)
			}
		case event.Output != nil:
			if err := c.print(event.Output); err != nil {
				return err
			}
		case event.Gap != nil:
			c.notice("%d bytes of output were dropped before they could be read", event.Gap.GetEnd()-event.Gap.GetStart())
		case event.Exited != nil && c.json():
			if err := c.outcome(process.ID(), stdout, stderr, event.Exited); err != nil {
				return err
			}
		}
	}
	exit := process.Exit()
	c.exitNotice(exit)
	if code := sandgate.ExitCode(exit); code != 0 {
		return exitCode(code)
	}
	return nil
}

// print writes a piece of output to the stream that it came from.
func (c *cli) print(output *sandgate.Output) error {
	to := c.stdout
	if output.GetStream() == sandgate.Stderr {
		to = c.stderr
	}
	_, err := to.Write(output.GetData())
	return err
}

// exitNotice prints why a command ended if its exit code does not show it.
func (c *cli) exitNotice(exit *sandgate.Exited) {
	text := map[sandgate.ExitReason]string{
		sandboxv1.ExitReason_EXIT_REASON_TIMED_OUT:       "the command timed out; it and its descendants were killed (TIMED_OUT)",
		sandboxv1.ExitReason_EXIT_REASON_OUT_OF_MEMORY:   "the command ran out of memory; give the sandbox more with --memory (OUT_OF_MEMORY)",
		sandboxv1.ExitReason_EXIT_REASON_SANDBOX_STOPPED: "the sandbox was stopped while the command ran; see: sandgate ls (SANDBOX_STOPPED)",
		sandboxv1.ExitReason_EXIT_REASON_LOST:            "the sandbox's agent died, so the exit status is unknown; check what the command did before you run it again (LOST)",
	}[exit.GetReason()]
	message := terminal.Clean(exit.GetMessage())
	switch {
	case text == "" && message == "":
		return
	case text == "":
		text = message
	case message != "":
		text += ": " + message
	}
	c.notice("%s", text)
}

// outcome prints a command's output and exit status as one JSON object. Output that
// is not UTF-8 is encoded in base64, under another name.
func (c *cli) outcome(id string, stdout, stderr []byte, exit *sandgate.Exited) error {
	raw, err := protojson.Marshal(exit)
	if err != nil {
		return fmt.Errorf("print as JSON: %w", err)
	}
	object := map[string]any{"execId": id, "exited": json.RawMessage(raw)}
	for name, data := range map[string][]byte{"stdout": stdout, "stderr": stderr} {
		if utf8.Valid(data) {
			object[name] = string(data)
		} else {
			object[name+"Base64"] = base64.StdEncoding.EncodeToString(data)
		}
	}
	return c.object(object)
}

// feed sends standard input to the command until either ends.
func (c *cli) feed(ctx context.Context, process *sandgate.Process) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := c.stdin.Read(buffer)
		if n > 0 {
			if failure := process.WriteStdin(ctx, buffer[:n]); failure != nil {
				c.stdinNotice(ctx, failure)
				return
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				c.notice("standard input cannot be read: %v", err)
			}
			if failure := process.CloseStdin(ctx); failure != nil {
				c.stdinNotice(ctx, failure)
			}
			return
		}
	}
}

// stdinNotice prints why input did not reach the command, unless the command has
// stopped reading it.
func (c *cli) stdinNotice(ctx context.Context, err error) {
	if ctx.Err() == nil && !errors.Is(err, sandgate.ErrExecState) && !errors.Is(err, sandgate.ErrExecNotFound) {
		c.notice("standard input does not reach the command: %s", advise(err))
	}
}

// brokenPipe reports whether the reader of the output has gone.
func brokenPipe(err error) bool { return errors.Is(err, syscall.EPIPE) }
