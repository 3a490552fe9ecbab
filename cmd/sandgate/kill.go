package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

func (c *cli) killCommand() *cobra.Command {
	name, scope := "", ""
	cmd := &cobra.Command{
		Use:   "kill [flags] ID EXEC",
		Short: "Send a signal to a command",
		Long: `Send a signal to a command and, unless --scope names less, to all its descendants.
If no process is left, kill prints a notice and exits with 0.`,
		Example: `  sandgate kill build-42 $exec
  sandgate kill --signal TERM --scope leader build-42 $exec`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: c.completeExec,
		RunE: func(cmd *cobra.Command, args []string) error {
			to, ok := sandboxv1.SignalScope_value["SIGNAL_SCOPE_"+strings.ToUpper(scope)]
			if !ok || to == 0 {
				return usage(cmd, "--scope is leader, group or tree, not %q", scope)
			}
			return c.with(cmd, func(ctx context.Context, client *sandgate.Client) error {
				delivered, err := client.Sandbox(args[0]).Signal(ctx, args[1], strings.ToUpper(name), sandgate.SignalScope(to))
				if err != nil {
					return err
				}
				if c.json() {
					return c.message(&sandboxv1.SignalProcessResponse{Delivered: delivered})
				}
				if !delivered {
					c.notice("the command %s had ended: there was no process left to signal", args[1])
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVarP(&name, "signal", "s", "KILL", "signal by name")
	cmd.Flags().StringVar(&scope, "scope", "tree", "processes to signal: leader, group or tree")
	_ = cmd.RegisterFlagCompletionFunc("scope", cobra.FixedCompletions([]string{"leader", "group", "tree"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}
