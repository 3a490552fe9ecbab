package serve

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandgate/sandgate/server/authn"
)

// NewTokenCommand returns the command "token".
func NewTokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Create tokens for the server's tokens file",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTokenNewCommand())
	return cmd
}

func newTokenNewCommand() *cobra.Command {
	var entry authn.Entry
	var lifetime time.Duration
	cmd := &cobra.Command{
		Use:   "new --name NAME [--tenant TENANT] [--role ROLE] [--template NAME]… [--prefix TEXT] [--expires DURATION]",
		Short: "Create a token and its entry for the tokens file",
		Long: `New creates a token with 256 random bits and prints it on standard output, once.
The file of --tokens-file holds only its hash: add the entry that is printed on
standard error.

A reader can list and inspect sandboxes and read their files and output. A user
can do everything in its tenant. An operator can also list, inspect, signal and
delete in other tenants.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if entry.Tenant == "" {
				entry.Tenant = entry.Name
			}
			if lifetime < 0 {
				return fmt.Errorf("--expires must not be negative; see: %s --help", cmd.CommandPath())
			}
			if lifetime > 0 {
				expires := time.Now().Add(lifetime).UTC().Truncate(time.Second)
				entry.Expires = &expires
			}
			token, entry, err := authn.NewToken(entry)
			if err != nil {
				return fmt.Errorf("%w; see: %s --help", err, cmd.CommandPath())
			}
			// JSON is YAML, and quotes what needs it.
			line, err := json.Marshal(entry)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), token)
			fmt.Fprintf(cmd.ErrOrStderr(), "Add this under \"tokens:\" in the tokens file:\n  - %s\n", line)
			return nil
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVar(&entry.Name, "name", "", "name of the holder, in logs and audit records")
	cmd.Flags().StringVar(&entry.Tenant, "tenant", "", "tenant whose sandboxes it gives access to (default: the name)")
	cmd.Flags().StringVar(&entry.Role, "role", "", "reader, user or operator (default: user)")
	cmd.Flags().StringArrayVar(&entry.Templates, "template", nil, "template that it can create sandboxes from; repeatable (default: all)")
	cmd.Flags().StringVar(&entry.IDPrefix, "prefix", "", "beginning of the ids of all sandboxes that it can use (default: all)")
	cmd.Flags().DurationVar(&lifetime, "expires", 0, "how long it is valid, such as 720h (default: forever)")
	return cmd
}
