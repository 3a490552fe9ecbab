package main

import (
	"context"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/cmd/sandgate/internal/transfer"
)

// location is the source or the destination of a copy.
type location struct {
	sandbox string // empty: on this machine
	path    string
}

// remote matches a location in a sandbox. A name with "/" before the colon is
// local, so ./a:b is a file of this machine.
var remote = regexp.MustCompile(`(?s)^([A-Za-z0-9][A-Za-z0-9._-]{0,127}):(.*)$`)

func parseLocation(text string) location {
	if m := remote.FindStringSubmatch(text); m != nil && !drive(text) {
		return location{sandbox: m[1], path: m[2]}
	}
	return location{path: text}
}

// drive reports whether a path begins with a drive letter, as on Windows.
func drive(text string) bool { return len(text) > 2 && text[1] == ':' && text[2] == '\\' }

func (c *cli) cpCommand() *cobra.Command {
	recursive, quiet := false, false
	cmd := &cobra.Command{
		Use:   "cp [flags] SRC DST",
		Short: "Copy files into a sandbox, or out of it",
		Long: `Copy a file into a sandbox, or out of it. The side in the sandbox is written
ID:/path, with an absolute path; "-" is standard input or output. A directory as
the destination takes the file under its own name.

A file appears whole or not at all, its SHA-256 is checked, and the copy resumes
where a connection broke.`,
		Example: `  sandgate cp data.csv build-42:/workspace/
  sandgate cp build-42:/workspace/report.pdf .
  sandgate cp -r ./src build-42:/workspace/src
  sandgate cp build-42:/var/log/app.log - | tail`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, to := parseLocation(args[0]), parseLocation(args[1])
			if (from.sandbox == "") == (to.sandbox == "") {
				return usage(cmd, "one side of a copy is ID:/path, and only one")
			}
			inside := from.path
			if from.sandbox == "" {
				inside = to.path
			}
			if !strings.HasPrefix(inside, "/") {
				return usage(cmd, "the path in the sandbox must be absolute, not %q", inside)
			}
			return c.with(cmd, func(ctx context.Context, client *sandgate.Client) error {
				job := &transfer.Copy{Recursive: recursive, Stdin: c.stdin, Stdout: c.stdout, Notice: c.notice}
				if !quiet && !c.json() {
					job.Progress = c.stderr
				}
				if to.sandbox != "" {
					job.Sandbox = client.Sandbox(to.sandbox)
					return job.Put(ctx, from.path, to.path)
				}
				job.Sandbox = client.Sandbox(from.sandbox)
				return job.Get(ctx, from.path, to.path)
			})
		},
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "copy a directory and everything in it")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "show no progress")
	return cmd
}
