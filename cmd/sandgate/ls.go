package main

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/cmd/sandgate/internal/terminal"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

const statePrefix = "SANDBOX_STATE_"

func (c *cli) lsCommand() *cobra.Command {
	var labels, states []string
	quiet := false
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List sandboxes",
		Example: `  sandgate ls
  sandgate ls --label team=search --state active
  sandgate ls --quiet --label job=nightly | xargs -r sandgate rm`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			request, err := selection(cmd, labels, states)
			if err != nil {
				return err
			}
			return c.with(cmd, func(ctx context.Context, client *sandgate.Client) error {
				found := &sandboxv1.ListSandboxesResponse{}
				for info, err := range client.List(ctx, request) {
					if err != nil {
						return err
					}
					found.Sandboxes = append(found.Sandboxes, info)
				}
				return c.sandboxes(found, quiet)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVarP(&labels, "label", "l", nil, "only sandboxes with this label KEY=VALUE (repeatable: all must match)")
	flags.StringArrayVar(&states, "state", nil, "only sandboxes in this state, such as active (repeatable: any matches)")
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(
		[]string{"creating", "active", "suspended", "deleting", "failed"}, cobra.ShellCompDirectiveNoFileComp))
	flags.BoolVarP(&quiet, "quiet", "q", false, "print only ids")
	return cmd
}

// selection returns the request for labels and states as the user writes them.
func selection(cmd *cobra.Command, labels, states []string) (r sandgate.ListRequest, err error) {
	for _, name := range states {
		state, ok := sandboxv1.SandboxState_value[statePrefix+strings.ToUpper(name)]
		if !ok || state == 0 {
			return r, usage(cmd, "--state is creating, active, suspended, deleting or failed, not %q", name)
		}
		r.States = append(r.States, sandboxv1.SandboxState(state))
	}
	r.Labels, err = assignments(cmd, "label", labels)
	return r, err
}

// sandboxes prints sandboxes.
func (c *cli) sandboxes(found *sandboxv1.ListSandboxesResponse, quiet bool) error {
	if c.json() {
		return c.message(found)
	}
	rows := make([][]string, 0, len(found.GetSandboxes()))
	for _, s := range found.GetSandboxes() {
		rows = append(rows, []string{
			s.GetSandboxId(), word(s.GetState(), statePrefix), s.GetTemplate(), ago(s.GetCreateTime()),
			ago(s.GetLastActivityTime()), until(s.GetExpireTime()), terminal.Clean(pairs(s.GetLabels())),
		})
	}
	return c.list(quiet, []string{"ID", "STATE", "TEMPLATE", "AGE", "IDLE", "EXPIRES", "LABELS"}, rows)
}

// completeSandbox completes one sandbox id.
func (c *cli) completeSandbox(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.completeSandboxes()(cmd, args, prefix)
}

// completeSandboxes completes any number of ids of sandboxes in these states, or in
// any state if there are none.
func (c *cli) completeSandboxes(states ...sandgate.State) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		var ids []string
		_ = c.with(cmd, func(ctx context.Context, client *sandgate.Client) error {
			for info, err := range client.List(ctx, sandgate.ListRequest{States: states}) {
				if err != nil {
					return err
				}
				if id := info.GetSandboxId(); strings.HasPrefix(id, prefix) && !slices.Contains(args, id) {
					ids = append(ids, id)
				}
			}
			return nil
		})
		return ids, cobra.ShellCompDirectiveNoFileComp
	}
}
