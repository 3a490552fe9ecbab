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
	"github.com/sandgate/sandgate/cmd/sandgate/internal/terminal"
)

// failed is the exit code when Sandgate itself failed.
const failed = 125

// exitCode ends the program with the exit code of the command that it ran.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// usageError is a mistake on the command line.
type usageError struct{ message, command string }

func (e *usageError) Error() string { return e.message + "; see: " + e.command + " --help" }

func usage(cmd *cobra.Command, format string, args ...any) error {
	return &usageError{message: fmt.Sprintf(format, args...), command: cmd.CommandPath()}
}

// exit returns the exit code for the outcome of a command. If Sandgate itself
// failed, it prints one line on standard error.
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
	c.printError(err)
	return failed
}

// printError prints an error on standard error: one line, or one JSON object with
// --output json.
func (c *cli) printError(err error) {
	if !c.json() {
		c.notice("%s", advise(err))
		return
	}
	object := map[string]any{"message": terminal.Clean(advise(err))}
	if failure := (*sandgate.Error)(nil); errors.As(err, &failure) {
		object["code"] = failure.Code.String()
		object["reason"] = failure.Reason
		object["metadata"] = failure.Metadata
		object["request_id"] = failure.RequestID
	}
	_ = json.NewEncoder(c.stderr).Encode(map[string]any{"error": object})
}

// notice prints one line on standard error. Parts of it may come from a sandbox,
// so control characters are replaced.
func (c *cli) notice(format string, args ...any) {
	line := terminal.Clean(strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " "))
	_, _ = fmt.Fprintf(c.stderr, "sandgate: %s\n", line)
}

// advise returns the text of an error with a hint at its cure. The server's own
// hint, which follows a semicolon and is for programs, is replaced with the command
// to type. What a server does not support depends on its operator, so there the
// server's hint comes first.
func advise(err error) string {
	failure := (*sandgate.Error)(nil)
	if !errors.As(err, &failure) {
		return err.Error()
	}
	for _, h := range hints {
		if errors.Is(failure, h.kind) {
			message, own, _ := strings.Cut(failure.Message, "; ")
			if failure.Reason != "" {
				message += " (" + string(failure.Reason) + ")"
			}
			if own != "" && errors.Is(h.kind, sandgate.ErrUnsupported) {
				return message + "; " + own
			}
			return message + "; " + strings.ReplaceAll(h.hint, "ID", cmp.Or(failure.Metadata["sandbox_id"], "ID"))
		}
	}
	if errors.Is(failure, sandgate.ErrSandboxNotActive) && failure.Metadata["state"] == "SUSPENDED" {
		message, _, _ := strings.Cut(failure.Message, "; ")
		return fmt.Sprintf("%s (%s); bring it back with: sandgate resume %s", message, failure.Reason, failure.Metadata["sandbox_id"])
	}
	if errors.Is(failure, sandgate.ErrUnavailable) && failure.Reason == "" {
		return err.Error() + "; --address names another server"
	}
	if errors.Is(failure, sandgate.ErrInternal) && failure.RequestID != "" {
		return err.Error() + "; the server's log has more under request id " + failure.RequestID
	}
	return err.Error()
}

// hints are the cures of errors that have an obvious one.
var hints = []struct {
	kind error
	hint string
}{
	{sandgate.ErrAuthentication, "give a valid token with --token, --token-file, SANDGATE_TOKEN or SANDGATE_TOKEN_FILE"},
	{sandgate.ErrSandboxNotFound, "list them with: sandgate ls"},
	{sandgate.ErrSandboxExists, "take another id, or remove it with: sandgate rm ID"},
	{sandgate.ErrTemplateNotFound, "list them with: sandgate info"},
	{sandgate.ErrExecNotFound, "list commands with: sandgate ps --all ID"},
	{sandgate.ErrUnsupported, "what the server can do is shown by: sandgate info"},
}
