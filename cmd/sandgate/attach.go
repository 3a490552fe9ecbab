package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

func (c *cli) attachCommand() *cobra.Command {
	position := int64(0)
	streams := false
	cmd := &cobra.Command{
		Use:   "attach [flags] ID EXEC",
		Short: "Follow a command to its end",
		Long: `Print the retained output of a running or ended command and follow it to its end.
The exit code is the command's. Ctrl-C detaches from the command, which keeps
running.`,
		Example: `  exec=$(sandgate exec --detach build-42 -- make)
  sandgate attach build-42 $exec
  sandgate attach --position 4096 build-42 $exec`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: c.completeExec,
		RunE: func(cmd *cobra.Command, args []string) error {
			until := sandgate.LeaderExit
			if streams {
				until = sandgate.StreamsEnd
			}
			return c.with(cmd, func(ctx context.Context, client *sandgate.Client) error {
				process, err := client.Sandbox(args[0]).Attach(ctx, args[1], position, until)
				if err != nil {
					return err
				}
				defer process.Close()
				return c.follow(process)
			})
		},
	}
	cmd.Flags().Int64Var(&position, "position", 0, "begin after this many bytes of output")
	cmd.Flags().BoolVar(&streams, "streams-end", false, "follow until no process holds the output open")
	return cmd
}

func (c *cli) logsCommand() *cobra.Command {
	follow := false
	cmd := &cobra.Command{
		Use:   "logs [flags] ID EXEC",
		Short: "Print the output of a command so far",
		Long: `Print the retained output of a command, stdout and stderr separate. With --follow,
continue until the command ends; unlike attach, logs then exits with 0.`,
		Example: `  sandgate logs build-42 $exec
  sandgate logs --follow build-42 $exec`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: c.completeExec,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.with(cmd, func(ctx context.Context, client *sandgate.Client) error {
				return c.logs(ctx, client.Sandbox(args[0]), args[1], follow)
			})
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "continue until the command ends")
	return cmd
}

// logs prints the output that a command has written by the time of the call, or all
// of it if follow is set.
func (c *cli) logs(ctx context.Context, sandbox *sandgate.Sandbox, id string, follow bool) error {
	info, err := find(ctx, sandbox, id)
	if err != nil {
		return err
	}
	process, err := sandbox.Attach(ctx, id, info.GetFirstPosition(), sandgate.LeaderExit)
	if err != nil {
		return err
	}
	defer process.Close()
	if info.GetFirstPosition() > 0 {
		c.notice("%d bytes of earlier output are no longer retained", info.GetFirstPosition())
	}
	if !follow && info.GetPosition() <= info.GetFirstPosition() {
		return nil
	}
	for event, err := range process.Events() {
		if err != nil {
			return err
		}
		end := int64(0)
		switch {
		case event.Output != nil:
			if err := c.print(event.Output); err != nil {
				return err
			}
			end = event.Output.GetPosition() + int64(len(event.Output.GetData()))
		case event.Gap != nil:
			c.notice("%d bytes of output were dropped before they could be read", event.Gap.GetEnd()-event.Gap.GetStart())
			end = event.Gap.GetEnd()
		}
		if !follow && end >= info.GetPosition() {
			return nil
		}
	}
	return nil
}

// find returns one command of a sandbox.
func find(ctx context.Context, sandbox *sandgate.Sandbox, id string) (*sandgate.ProcessInfo, error) {
	processes, err := sandbox.Processes(ctx, true)
	if err != nil {
		return nil, err
	}
	for _, p := range processes {
		if p.GetExecId() == id {
			return p, nil
		}
	}
	return nil, &sandgate.Error{
		Code: codes.NotFound, Reason: "EXEC_NOT_FOUND", Message: fmt.Sprintf("there is no command %q in sandbox %q", id, sandbox.ID()),
	}
}
