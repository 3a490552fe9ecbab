package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandgate/sandgate/cmd/sandgate/internal/settings"
)

var discard = slog.New(slog.DiscardHandler)

// NewConfigCommand returns the command "config".
func NewConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check and describe the server's configuration",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCheckCommand(), newSchemaCommand())
	return cmd
}

func newCheckCommand() *cobra.Command {
	flags := defaults()
	var skipFiles bool
	cmd := &cobra.Command{
		Use:   "check [FILE] [FLAGS OF SERVE]",
		Short: "Check a configuration file and flags of serve, without starting a server",
		Long: `Check reports what "sandgate serve" would refuse in a configuration file and in
flags, with the key and, where there is one, the line. FILE stands for --config
FILE. All flags of serve are flags of check.

It needs neither root nor a cluster nor the network, and changes nothing. It does
not look at the machine: its OCI runtime, its Docker daemon, its cluster, ports in
use, the state directory and the variables OTEL_*. Files that the configuration
names, such as certificates, are read; a file that only another user can read is
reported on standard error and does not fail the check. So are quotas that each
server counts alone.

It prints "ok" and exits with 0 if the server would accept the configuration.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				if flags.File != "" && flags.File != args[0] {
					return fmt.Errorf("both FILE and --config are given; see: %s --help", cmd.CommandPath())
				}
				flags.File = args[0]
			}
			c, err := load(flags, cmd.Flags().Changed)
			var unread []string
			if err == nil {
				c = c.derived()
				unread, err = c.check(skipFiles)
			}
			for _, file := range unread {
				fmt.Fprintf(cmd.ErrOrStderr(), "not checked, because this user cannot read it: %s\n", file)
			}
			if err != nil {
				lines := strings.Split(err.Error(), "\n")
				for _, line := range lines {
					fmt.Fprintln(cmd.ErrOrStderr(), line)
				}
				return errors.New(plural(len(lines), "problem") + " in the configuration")
			}
			quotas, err := c.Quotas.quotas()
			if err != nil {
				return err
			}
			if alone := quotas.EachServer(); len(alone) > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "note: each server counts %s alone, so two servers allow twice as much\n", strings.Join(alone, " and "))
			}
			fmt.Fprintln(cmd.OutOrStdout(), "ok")
			return nil
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().BoolVar(&skipFiles, "skip-files", false, "do not read the files that the configuration names, as on a machine that has none of them")
	settings.AddFlags(cmd.Flags(), &flags)
	return cmd
}

func plural(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}

func newSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the configuration file",
		Long: `Schema prints a JSON Schema (draft 2020-12) of the server's configuration file, for
editors and other programs that check YAML. "sandgate config check" finds more: what
depends on several keys, and the options of templates.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			encoder := json.NewEncoder(cmd.OutOrStdout())
			encoder.SetEscapeHTML(false)
			encoder.SetIndent("", "  ")
			return encoder.Encode(schema())
		},
	}
}

// schema returns the JSON Schema of the configuration file.
func schema() settings.Object {
	standard := defaults()
	standard.StateDir = "" // depends on the user
	return settings.Schema("Configuration file of sandgate serve", &standard)
}
