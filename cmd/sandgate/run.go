package main

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

const (
	// removal is how long run keeps trying to delete its sandbox.
	removal = 30 * time.Second
	// leftover is the idle lifetime of a run's sandbox, in case the run cannot
	// delete it.
	leftover = 10 * time.Minute
)

func (c *cli) runCommand() *cobra.Command {
	spec, command := &specFlags{}, &commandFlags{}
	keep := false
	cmd := &cobra.Command{
		Use:   "run [flags] -- CMD…",
		Short: "Run one command in a new sandbox",
		Long: `Create a sandbox, run one command in it, and delete the sandbox, even if the
command fails or is interrupted. Stdout and stderr stay separate and arrive as
they are written. The exit code is the command's.`,
		Example: `  sandgate run -- sh -c 'echo out; echo err >&2; exit 3'
  sandgate run -it -- bash
  sandgate run --timeout 10s --memory 256MiB -c 'make test | tail -5'
  echo 'print(6 * 7)' | sandgate run -i -- python3 -`,
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := command.request(cmd, args)
			if err != nil {
				return err
			}
			create, err := spec.request(cmd)
			if err != nil {
				return err
			}
			own := create.ID == ""
			if own {
				create.ID = "run-" + strings.ToLower(rand.Text()[:16])
			}
			if own && !keep && create.IdleTTL == 0 {
				create.IdleTTL = leftover
			}
			return c.with(cmd, func(ctx context.Context, client *sandgate.Client) error {
				sandbox, created, err := c.create(ctx, client, create)
				if err != nil {
					// It may exist although the reply was lost.
					if own && ctx.Err() != nil {
						return errors.Join(err, c.remove(ctx, client.Sandbox(create.ID), err))
					}
					return err
				}
				err = c.execute(ctx, sandbox, request, command)
				if keep || !own && !created {
					return err
				}
				return errors.Join(err, c.remove(ctx, sandbox, err))
			})
		},
	}
	command.add(cmd)
	spec.add(c, cmd, "sandbox-")
	cmd.Flags().BoolVar(&keep, "keep", false, "do not delete the sandbox afterwards")
	return cmd
}

// remove deletes the sandbox of a run, even if the run was interrupted. If the run
// has an error of its own, a failed deletion is only a notice.
func (c *cli) remove(ctx context.Context, sandbox *sandgate.Sandbox, outcome error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removal)
	defer cancel()
	err := sandbox.Delete(ctx)
	if err != nil && outcome != nil {
		c.notice("the sandbox %s was not deleted: %s", sandbox.ID(), advise(err))
		return nil
	}
	return err
}
