package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

func (c *cli) cleanupCommand() *cobra.Command {
	var request sandgate.CleanupRequest
	var labels []string
	cmd := &cobra.Command{
		Use:   "cleanup [flags]",
		Short: "Delete sandboxes that have been idle",
		Long: `Delete sandboxes of your tenant that have been idle for a time, and print their
ids. A sandbox with a running command is not idle. Without --max-idle, only expired
sandboxes are deleted, as the server soon does by itself.`,
		Example: `  sandgate cleanup --max-idle 2h --dry-run      what would be deleted
  sandgate cleanup --max-idle 2h --label job=nightly`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("max-idle") && request.MaxIdle <= 0 {
				return usage(cmd, "--max-idle is more than 0, not %s", request.MaxIdle)
			}
			var err error
			if request.Labels, err = assignments(cmd, "label", labels); err != nil {
				return err
			}
			return c.with(cmd, func(ctx context.Context, client *sandgate.Client) error {
				cleaned, err := client.Cleanup(ctx, request)
				if err != nil {
					return err
				}
				return c.cleaned(cleaned)
			})
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&request.MaxIdle, "max-idle", 0, "delete sandboxes that have been idle for longer, such as 2h")
	flags.StringArrayVarP(&labels, "label", "l", nil, "only sandboxes with this label KEY=VALUE (repeatable: all must match)")
	flags.BoolVar(&request.DryRun, "dry-run", false, "print what would be deleted, and delete nothing")
	return cmd
}

// cleaned prints the deleted sandboxes and returns the failures.
func (c *cli) cleaned(cleaned *sandgate.Cleaned) error {
	if c.json() {
		if err := c.message(cleaned); err != nil {
			return err
		}
	} else {
		for _, id := range cleaned.GetDeletedSandboxIds() {
			_, _ = fmt.Fprintln(c.stdout, id)
		}
	}
	var failures []error
	for _, f := range cleaned.GetFailures() {
		failures = append(failures, fmt.Errorf("the sandbox %s was not deleted: %s", f.GetSandboxId(), f.GetMessage()))
	}
	return c.failures(failures)
}
