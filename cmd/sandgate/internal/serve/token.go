package serve

import (
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
	var name, tenant string
	var expiresIn time.Duration
	cmd := &cobra.Command{
		Use:   "new --name NAME [--tenant TENANT] [--expires-in DURATION]",
		Short: "Create a token and its entry for the tokens file",
		Long: `New creates a token with 256 random bits and prints it on standard output, once.
The file of --tokens-file holds only its hash: add the entry that is printed on
standard error.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if tenant == "" {
				tenant = name
			}
			token, entry, err := authn.NewToken(name, tenant)
			if err != nil {
				return fmt.Errorf("%w; see: %s --help", err, cmd.CommandPath())
			}
			expires := ""
			if expiresIn < 0 {
				return fmt.Errorf("--expires-in must not be negative; see: %s --help", cmd.CommandPath())
			}
			if expiresIn > 0 {
				expires = ", expires: " + time.Now().Add(expiresIn).UTC().Format(time.RFC3339)
			}
			fmt.Fprintln(cmd.OutOrStdout(), token)
			fmt.Fprintf(cmd.ErrOrStderr(), "Add this under \"tokens:\" in the tokens file:\n  - {name: %q, tenant: %q, sha256: %s%s}\n",
				entry.Name, entry.Tenant, entry.SHA256, expires)
			return nil
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "name of the holder, in logs and audit records")
	cmd.Flags().StringVar(&tenant, "tenant", "", "tenant whose sandboxes it gives access to (default: the name)")
	cmd.Flags().DurationVar(&expiresIn, "expires-in", 0, "how long it is valid, such as 720h (default: forever)")
	return cmd
}
