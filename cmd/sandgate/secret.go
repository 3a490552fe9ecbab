package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

func (c *cli) secretCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "secret",
		Short: "List the secrets that rules can put into requests",
		Args:  knownCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	command.AddCommand(&cobra.Command{
		Use:   "list",
		Short: "List the names of your secrets, never their values",
		Long: `List the secrets that your sandboxes can use: the name, where the server reads the
value, and the hosts that can get it. A value is never shown, and never enters a
sandbox.`,
		Example: "  sandgate secret list\n  sandgate create box --secret git@git.example.com=git-token",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.with(cmd, func(ctx context.Context, client *sandgate.Client) error {
				info, err := client.ServerInfo(ctx)
				if err != nil {
					return err
				}
				if c.json() {
					for _, s := range info.GetSecrets() {
						if err := c.message(s); err != nil {
							return err
						}
					}
					return nil
				}
				var rows [][]string
				for _, s := range info.GetSecrets() {
					rows = append(rows, []string{s.GetName(), s.GetSource(), strings.Join(s.GetHosts(), ", ")})
				}
				return table(c.stdout, []string{"NAME", "SOURCE", "HOSTS"}, rows)
			})
		},
	})
	return command
}
