package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/cmd/sandgate/internal/serve"
)

// failed is the exit code for what Sandgate itself could not do.
const failed = 125

// exitCode ends the program with the code of the command that it ran.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// usageError is a mistake on the command line.
type usageError struct{ message, command string }

func (e *usageError) Error() string { return e.message + "; see: " + e.command + " --help" }

func usage(cmd *cobra.Command, format string, args ...any) error {
	return &usageError{message: fmt.Sprintf(format, args...), command: cmd.CommandPath()}
}

// exit turns the outcome of a command into an exit code, and into one line on
// standard error where Sandgate itself failed.
func (c *cli) exit(ctx context.Context, err error) int {
	if err == nil {
		return 0
	}
	if code := exitCode(0); errors.As(err, &code) {
		return int(code)
	}
	if s := (signalled{}); errors.As(context.Cause(ctx), &s) {
		return 128 + int(s.signal)
	}
	if brokenPipe(err) {
		return 128 + 13
	}
	if logged := (serve.LoggedError{}); errors.As(err, &logged) {
		return failed
	}
	if c.output == "json" {
		c.sayJSON(err)
	} else {
		c.say("%s", explain(err))
	}
	return failed
}

// sayJSON prints the error as one JSON object on standard error.
func (c *cli) sayJSON(err error) {
	said := map[string]any{"message": clean(explain(err))}
	if own := (*sandgate.Error)(nil); errors.As(err, &own) {
		said["code"] = own.Code.String()
		said["reason"] = own.Reason
		said["metadata"] = own.Metadata
		said["request_id"] = own.RequestID
	}
	_ = json.NewEncoder(c.stderr).Encode(map[string]any{"error": said})
}

// say prints one line on standard error. Parts of it may come from a sandbox, so
// nothing in it steers the terminal.
func (c *cli) say(format string, args ...any) {
	line := clean(strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " "))
	_, _ = fmt.Fprintf(c.stderr, "sandgate: %s\n", line)
}

// explain adds to an error what can be done about it. The server's own advice,
// which follows after a semicolon and is for programs, gives way to the command
// to type.
func explain(err error) string {
	own := (*sandgate.Error)(nil)
	if !errors.As(err, &own) {
		return err.Error()
	}
	for _, h := range hints {
		if errors.Is(own, h.kind) {
			what, _, _ := strings.Cut(own.Message, "; ")
			if own.Reason != "" {
				what += " (" + string(own.Reason) + ")"
			}
			return what + "; " + strings.ReplaceAll(h.hint, "ID", cmp.Or(own.Metadata["sandbox_id"], "ID"))
		}
	}
	if errors.Is(own, sandgate.ErrSandboxNotActive) && own.Metadata["state"] == "SUSPENDED" {
		what, _, _ := strings.Cut(own.Message, "; ")
		return fmt.Sprintf("%s (%s); bring it back with: sandgate resume %s", what, own.Reason, own.Metadata["sandbox_id"])
	}
	if errors.Is(own, sandgate.ErrUnavailable) && own.Reason == "" {
		return err.Error() + "; --address names another server"
	}
	if errors.Is(own, sandgate.ErrInternal) && own.RequestID != "" {
		return err.Error() + "; the server's log has more under request id " + own.RequestID
	}
	return err.Error()
}

// hints say what to do about an error that has an obvious cure.
var hints = []struct {
	kind error
	hint string
}{
	{sandgate.ErrAuthentication, "give a valid token with --token or SANDGATE_TOKEN"},
	{sandgate.ErrSandboxNotFound, "list them with: sandgate ls"},
	{sandgate.ErrSandboxExists, "take another id, or remove it with: sandgate rm ID"},
	{sandgate.ErrTemplateNotFound, "list them with: sandgate info"},
	{sandgate.ErrExecNotFound, "list commands with: sandgate ps --all ID"},
	{sandgate.ErrUnsupported, "what the server can do is shown by: sandgate info"},
}
