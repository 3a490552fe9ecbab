package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

func (c *cli) rmCommand() *cobra.Command {
	var labels []string
	force, all, yes := false, false, false
	cmd := &cobra.Command{
		Use:     "rm [flags] ID…",
		Aliases: []string{"delete"},
		Short:   "Delete sandboxes and everything in them",
		Example: `  sandgate rm build-42
  sandgate rm --force build-42 build-43      does not fail if one is gone
  sandgate rm --all --label job=nightly --yes`,
		ValidArgsFunction: c.completeSandboxes(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return usage(cmd, "give ids, or --all")
			}
			if !all && len(labels) > 0 {
				return usage(cmd, "--label goes with --all")
			}
			request, err := selection(cmd, labels, nil)
			if err != nil {
				return err
			}
			return c.with(cmd, func(ctx context.Context, client *sandgate.Client) error {
				if all {
					force = true
					if args, err = c.selected(ctx, client, request, yes); err != nil {
						return err
					}
				}
				return c.rm(ctx, client, args, force)
			})
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&force, "force", "f", false, "do not fail if a sandbox does not exist")
	flags.BoolVar(&all, "all", false, "delete all sandboxes of your tenant, after confirmation")
	flags.StringArrayVarP(&labels, "label", "l", nil, "with --all: only those with this label KEY=VALUE (repeatable)")
	flags.BoolVarP(&yes, "yes", "y", false, "with --all: do not ask")
	return cmd
}

// rm deletes sandboxes, as many as it can, and prints their ids.
func (c *cli) rm(ctx context.Context, client *sandgate.Client, ids []string, force bool) error {
	deleted := []string{}
	var failures []error
	for _, id := range ids {
		gone, err := client.Delete(ctx, id)
		switch {
		case err != nil:
			failures = append(failures, err)
		case gone:
			deleted = append(deleted, id)
			if !c.json() {
				_, _ = fmt.Fprintln(c.stdout, id)
			}
		case !force:
			failures = append(failures, &sandgate.Error{
				Code: codes.NotFound, Reason: "SANDBOX_NOT_FOUND", Message: fmt.Sprintf("there is no sandbox %q", id),
			})
		}
	}
	if c.json() {
		if err := c.object(map[string][]string{"deletedSandboxIds": deleted}); err != nil {
			return err
		}
	}
	return c.failures(failures)
}

// failures prints all errors but the last, which it returns: exit prints that one.
// Errors with the same text are printed once.
func (c *cli) failures(all []error) error {
	if len(all) == 0 {
		return nil
	}
	last := all[len(all)-1]
	printed := map[string]bool{advise(last): true}
	for _, err := range all {
		if line := advise(err); !printed[line] {
			printed[line] = true
			c.printError(err)
		}
	}
	return last
}

// selected returns the ids that --all stands for, once the user has agreed.
func (c *cli) selected(ctx context.Context, client *sandgate.Client, r sandgate.ListRequest, yes bool) ([]string, error) {
	var ids []string
	for info, err := range client.List(ctx, r) {
		if err != nil {
			return nil, err
		}
		ids = append(ids, info.GetSandboxId())
	}
	if yes || len(ids) == 0 {
		return ids, nil
	}
	what := fmt.Sprintf("%d sandboxes with all their files", len(ids))
	if len(ids) == 1 {
		what = "1 sandbox with all its files"
	}
	_, _ = fmt.Fprintf(c.stderr, "Delete %s: %s\nType yes to continue: ", what, strings.Join(ids, " "))
	answer, _ := bufio.NewReader(c.stdin).ReadString('\n')
	if strings.TrimSpace(answer) != "yes" {
		return nil, errors.New("nothing was deleted; --yes skips the question")
	}
	return ids, nil
}
