package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

func (c *cli) suspendCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "suspend ID…",
		Short: "Suspend sandboxes: stop their processes and keep their disks",
		Long: `Stop all processes in sandboxes and keep their disks, as far as the provider can:
agent-sandbox keeps volumes only. Lifetimes keep running: by default a sandbox that
has been suspended for a day is deleted with its volumes. Servers that can suspend
list "suspend" among the capabilities in "sandgate info".`,
		Example: `  sandgate suspend build-42
  sandgate ls --quiet --label job=nightly --state active | xargs -r sandgate suspend`,
		ValidArgsFunction: c.completeSandboxes(sandgate.Active),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.each(cmd, args, (*sandgate.Client).Suspend)
		},
	}
}

func (c *cli) resumeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "resume ID…",
		Short: "Resume suspended sandboxes",
		Long: `Resume suspended sandboxes. resume returns when a command can run in them. Each is
a new incarnation: processes from before do not run any more.`,
		Example: `  sandgate resume build-42
  sandgate ls --quiet --state suspended | xargs -r sandgate resume`,
		ValidArgsFunction: c.completeSandboxes(sandgate.Suspended),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.each(cmd, args, (*sandgate.Client).Resume)
		},
	}
}

// each calls do for every sandbox and prints the ids of those for which it
// succeeded.
func (c *cli) each(cmd *cobra.Command, ids []string, do func(*sandgate.Client, context.Context, string) (*sandgate.Info, error)) error {
	if len(ids) == 0 {
		return usage(cmd, "give ids")
	}
	return c.with(cmd, func(ctx context.Context, client *sandgate.Client) error {
		done := &sandboxv1.ListSandboxesResponse{}
		var failures []error
		for _, id := range ids {
			info, err := do(client, ctx, id)
			if err != nil {
				failures = append(failures, err)
				continue
			}
			done.Sandboxes = append(done.Sandboxes, info)
			if !c.json() {
				_, _ = fmt.Fprintln(c.stdout, id)
			}
		}
		if c.json() {
			if err := c.message(done); err != nil {
				return err
			}
		}
		return c.failures(failures)
	})
}
