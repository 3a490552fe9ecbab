package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/cmd/sandgate/internal/terminal"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

func (c *cli) psCommand() *cobra.Command {
	all, quiet := false, false
	cmd := &cobra.Command{
		Use:   "ps [flags] ID",
		Short: "List the commands of a sandbox",
		Example: `  sandgate ps build-42
  sandgate ps --all build-42      ended commands too`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completeSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.with(cmd, func(ctx context.Context, client *sandgate.Client) error {
				processes, err := client.Sandbox(args[0]).Processes(ctx, all)
				if err != nil {
					return err
				}
				return c.processes(processes, quiet)
			})
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "include ended commands that are still retained")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print only ids")
	return cmd
}

// processes prints the commands of a sandbox.
func (c *cli) processes(processes []*sandgate.ProcessInfo, quiet bool) error {
	if c.json() {
		return c.message(&sandboxv1.ListProcessesResponse{Processes: processes})
	}
	rows := make([][]string, 0, len(processes))
	for _, p := range processes {
		pid, state := strconv.Itoa(int(p.GetPid())), "running"
		if p.GetExited() != nil {
			pid, state = "-", fmt.Sprintf("%s (%d)", word(p.GetExited().GetReason(), "EXIT_REASON_"), sandgate.ExitCode(p.GetExited()))
		}
		if n := p.GetLiveProcesses(); p.GetExited() != nil && n > 0 {
			state += fmt.Sprintf(", %d left behind", n)
		}
		if p.GetDetached() {
			state += ", detached"
		}
		rows = append(rows, []string{
			p.GetExecId(), pid, state, ago(p.GetStartTime()), strconv.FormatInt(p.GetPosition(), 10), shorten(terminal.Clean(p.GetCommand())),
		})
	}
	return c.list(quiet, []string{"EXEC", "PID", "STATE", "AGE", "OUTPUT", "COMMAND"}, rows)
}

// shorten cuts a command so that a table stays readable.
func shorten(s string) string {
	const width = 80
	if runes := []rune(strings.TrimSpace(s)); len(runes) > width {
		return string(runes[:width-1]) + "…"
	}
	return strings.TrimSpace(s)
}

// completeExec completes the ids of sandboxes, then those of their commands.
func (c *cli) completeExec(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return c.completeSandbox(cmd, args, prefix)
	}
	var ids []string
	_ = c.with(cmd, func(ctx context.Context, client *sandgate.Client) error {
		processes, err := client.Sandbox(args[0]).Processes(ctx, true)
		for _, p := range processes {
			if len(args) == 1 && strings.HasPrefix(p.GetExecId(), prefix) {
				ids = append(ids, p.GetExecId())
			}
		}
		return err
	})
	return ids, cobra.ShellCompDirectiveNoFileComp
}
