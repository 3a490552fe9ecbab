package main

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

func (c *cli) updateCommand() *cobra.Command {
	var change sandgate.UpdateRequest
	var labels, allow, secrets []string
	cmd := &cobra.Command{
		Use:   "update [flags] ID…",
		Short: "Change labels, lifetimes and network rules of sandboxes",
		Example: `  sandgate update build-42 --label state=done --remove-label owner
  sandgate update build-42 --ttl 48h        counted from its creation
  sandgate update build-42 --renew          resets idleness
  sandgate update build-42 --allow packages --allow example.com:443`,
		ValidArgsFunction: c.completeSandboxes(),
		RunE: func(cmd *cobra.Command, args []string) error {
			given := cmd.Flags().Changed
			if !slices.ContainsFunc([]string{"label", "remove-label", "ttl", "idle-ttl", "renew", "allow", "secret"}, given) {
				return usage(cmd, "give a flag that changes something")
			}
			if given("ttl") && change.TTL == 0 || given("idle-ttl") && change.IdleTTL == 0 {
				return usage(cmd, "a lifetime is more than 0; -1s: none")
			}
			var err error
			if change.SetLabels, err = assignments(cmd, "label", labels); err != nil {
				return err
			}
			if given("allow") || given("secret") {
				rules, err := egressRules(cmd, allow, secrets)
				if err != nil {
					return err
				}
				change.Network = &sandgate.Network{Allow: rules}
			}
			return c.each(cmd, args, func(client *sandgate.Client, ctx context.Context, id string) (*sandgate.Info, error) {
				return client.Update(ctx, id, change)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVarP(&labels, "label", "l", nil, "label KEY=VALUE to set (repeatable)")
	flags.StringArrayVar(&change.RemoveLabels, "remove-label", nil, "KEY of a label to remove (repeatable)")
	flags.DurationVar(&change.TTL, "ttl", 0, "lifetime from creation, such as 8h; -1s: none")
	flags.DurationVar(&change.IdleTTL, "idle-ttl", 0, "lifetime from the last activity; -1s: none")
	flags.StringArrayVar(&allow, "allow", nil, "new list of destinations of a sandbox with --network proxy, as in create (repeatable)")
	flags.StringArrayVar(&secrets, "secret", nil, "new list of secrets for hosts, as in create (repeatable)")
	flags.BoolVar(&change.Renew, "renew", false, "count this as activity")
	return cmd
}
