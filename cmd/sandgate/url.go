package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

func (c *cli) urlCommand() *cobra.Command {
	put, ttl := false, time.Duration(0)
	cmd := &cobra.Command{
		Use:   "url [flags] ID PORT|PATH",
		Short: "Print a URL of a port or a file of a sandbox",
		Long: `Print a URL by which browsers and HTTP clients reach a port that a program in the
sandbox serves HTTP on, or one file. Whoever has the URL can use it until it expires.
The server must have a listener for URLs: sandgate serve --preview-listen :7780`,
		Example: `  sandgate url build-42 3000                    open it in a browser
  curl -L -o report.pdf "$(sandgate url build-42 /workspace/report.pdf)"
  curl -L -T data.csv "$(sandgate url --put build-42 /workspace/data.csv)"`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: c.completeSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			request := sandgate.URLRequest{TTL: ttl}
			if put {
				request.Method = "PUT"
			}
			if strings.HasPrefix(args[1], "/") {
				request.Path = args[1]
			} else {
				port, err := strconv.ParseUint(args[1], 10, 16)
				if err != nil || port == 0 {
					return usage(cmd, "%q is neither a port, 1 to 65535, nor an absolute path", args[1])
				}
				if put {
					return usage(cmd, "--put is for a path")
				}
				request.Port = int(port)
			}
			if cmd.Flags().Changed("ttl") && ttl <= 0 {
				return usage(cmd, "--ttl must be positive")
			}
			return c.with(cmd, func(ctx context.Context, client *sandgate.Client) error {
				u, err := client.Sandbox(args[0]).GetURL(ctx, request)
				if err != nil {
					return err
				}
				if c.json() {
					return c.message(u)
				}
				_, err = fmt.Fprintln(c.stdout, u.GetUrl())
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&put, "put", false, "a URL for writing the file, instead of reading it")
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "how long the URL can be used (default 1h, or what the server allows if that is less)")
	return cmd
}
