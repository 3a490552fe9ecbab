package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

func (c *cli) createCommand() *cobra.Command {
	spec := &specFlags{}
	cmd := &cobra.Command{
		Use:   "create [ID]",
		Short: "Create a sandbox and print its id",
		Long: `Create a sandbox and print its id.

create returns when a command can run in the sandbox, or fails and leaves nothing
behind. Creating an id again with the same flags returns the same sandbox.`,
		Example: `  id=$(sandgate create)
  sandgate create build-42 --label team=search --memory 1GiB --ttl 2h
  sandgate create --template data --env MODE=test`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				if spec.id != "" && spec.id != args[0] {
					return usage(cmd, "two different ids: %q and %q", spec.id, args[0])
				}
				spec.id = args[0]
			}
			request, err := spec.request(cmd)
			if err != nil {
				return err
			}
			return c.with(cmd, func(ctx context.Context, client *sandgate.Client) error {
				sandbox, created, err := c.create(ctx, client, request)
				if err != nil {
					return err
				}
				if c.json() {
					return c.message(&sandboxv1.CreateSandboxResponse{Sandbox: sandbox.Created(), Created: created})
				}
				_, err = fmt.Fprintln(c.stdout, sandbox.ID())
				return err
			})
		},
	}
	spec.add(c, cmd, "")
	return cmd
}
