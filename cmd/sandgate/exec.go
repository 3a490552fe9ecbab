package main

import (
	"context"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// commandFlags are the flags that describe a command to run.
type commandFlags struct {
	shell            string
	dir              string
	env              []string
	timeout, grace   time.Duration
	interactive, tty bool
	merge, detach    bool
	execID           string
	maxOutput        string
}

func (f *commandFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&f.shell, "command", "c", "", "a shell command, in place of -- CMD…")
	flags.BoolVarP(&f.interactive, "interactive", "i", false, "send standard input to the command")
	flags.BoolVarP(&f.tty, "tty", "t", false, "give the command a terminal")
	flags.DurationVar(&f.timeout, "timeout", 0, "end the command and all its descendants after this; -1s: never (default: the server's)")
	flags.DurationVar(&f.grace, "grace", sandgate.DefaultGrace, "how long the command keeps running after this program has disconnected")
	flags.StringArrayVarP(&f.env, "env", "e", nil, "environment KEY=VALUE; KEY alone takes this program's value (repeatable)")
	flags.StringVarP(&f.dir, "cwd", "w", "", "directory to start in (default: the sandbox's)")
	flags.BoolVar(&f.merge, "merge", false, "merge stderr into stdout, in exact order")
	flags.StringVar(&f.maxOutput, "max-output", "", "drop output beyond this, such as 1MiB")
	flags.StringVar(&f.execID, "exec-id", "", "id of the command; another call with it attaches to the same command")
}

// request returns the request that flags and arguments describe.
func (f *commandFlags) request(cmd *cobra.Command, argv []string) (sandgate.ExecuteRequest, error) {
	r := sandgate.ExecuteRequest{
		Shell: f.shell, Argv: argv, Cwd: f.dir, Timeout: f.timeout, Merged: f.merge,
		Detach: f.detach, ExecID: f.execID, StdinOpen: f.interactive,
	}
	switch {
	case f.shell == "" && len(argv) == 0:
		return r, usage(cmd, "there is no command; write it after --, or give one to the shell with -c")
	case f.shell != "" && len(argv) > 0:
		return r, usage(cmd, "there are two commands: the one of -c and %q", strings.Join(argv, " "))
	case f.detach && (f.interactive || f.tty):
		return r, usage(cmd, "--detach does not go with -i or -t")
	}
	if r.DisconnectGrace = f.grace; f.grace <= 0 {
		r.DisconnectGrace = -1
	}
	var err error
	if r.MaxOutputBytes, err = parseSize(cmd, "max-output", f.maxOutput); err != nil {
		return r, err
	}
	r.Env, err = assignments(cmd, "env", inherited(f.env))
	return r, err
}

func (c *cli) execCommand() *cobra.Command {
	command := &commandFlags{}
	cmd := &cobra.Command{
		Use:   "exec [flags] ID -- CMD…",
		Short: "Run a command in a sandbox",
		Long: `Run a command in a sandbox. Stdout and stderr stay separate and arrive as they
are written. The exit code is the command's.

Ctrl-C kills the command and all its descendants. The client reconnects
transparently. A command whose caller does not come back is killed a minute after
the disconnect, unless it was started with --detach.`,
		Example: `  sandgate exec build-42 -- ls -la /workspace
  sandgate exec build-42 -c 'cd repo && make 2>&1 | tail -20'
  sandgate exec --timeout 5m --env CI=1 --cwd /workspace/repo build-42 -- make test
  sandgate exec -it build-42 -- bash
  tar c . | sandgate exec -i build-42 -- tar x
  sandgate exec --detach build-42 -- ./server`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: c.completeSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() == 0 {
				return usage(cmd, "the sandbox's id goes before --")
			}
			request, err := command.request(cmd, args[1:])
			if err != nil {
				return err
			}
			return c.with(cmd, func(ctx context.Context, client *sandgate.Client) error {
				return c.execute(ctx, client.Sandbox(args[0]), request, command)
			})
		},
	}
	command.add(cmd)
	cmd.Flags().BoolVarP(&command.detach, "detach", "d", false, "print the command's id and return while it runs")
	return cmd
}

// inherited adds the values of variables that are given by name alone.
func inherited(env []string) []string {
	env = slices.Clone(env)
	for i, variable := range env {
		if !strings.Contains(variable, "=") {
			env[i] = variable + "=" + os.Getenv(variable)
		}
	}
	return env
}
