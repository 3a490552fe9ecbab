package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	sandgate "github.com/sandgate/sandgate/clients/go"
	"github.com/sandgate/sandgate/cmd/sandgate/internal/auditlog"
	"github.com/sandgate/sandgate/cmd/sandgate/internal/build"
	"github.com/sandgate/sandgate/cmd/sandgate/internal/serve"
)

// cli is one run of the program: its streams and its global flags.
type cli struct {
	stdin          io.Reader
	stdout, stderr io.Writer

	address, token, tokenFile, tenant string
	caFile, certFile, keyFile         string
	insecure                          bool
	output                            string

	// noticing is held while one of several goroutines prints a notice.
	noticing sync.Mutex

	// dial is for tests, which have no network.
	dial []grpc.DialOption
}

const rootHelp = `Sandgate runs commands and keeps files in sandboxes for AI agents.

Start a server in one terminal:

  sandgate serve

and use it from another:

  sandgate run -- python3 -c 'print(6 * 7)'      one command in a fresh sandbox
  id=$(sandgate create)                          a sandbox that stays
  sandgate exec $id -- ls -la                    a command in it
  sandgate exec -it $id -- bash                  a terminal in it
  sandgate cp data.csv $id:/workspace/           a file into it, or out of it
  sandgate rm $id                                delete it

run, exec and attach exit with the command's own code; with 124 if it timed out,
with 128+n after signal n, and with 125 if Sandgate itself failed, with the reason
and a hint on one line of standard error.`

const environmentHelp = `
Environment:
  SANDGATE_ADDRESS     the server: HOST:PORT, https://HOST:PORT or unix:///path
                       (default 127.0.0.1:7777)
  SANDGATE_TOKEN       the bearer token
  SANDGATE_TOKEN_FILE  a file with the bearer token, read again when it changes
  SANDGATE_CA_FILE     certificates to trust for the server; turns TLS on
  SANDGATE_CERT_FILE   certificate and key of the client, for mutual TLS
  SANDGATE_KEY_FILE
  SANDGATE_TEMPLATE    template of sandboxes that are created without --template
  TRACEPARENT          the trace that the calls belong to (W3C Trace Context), with
                       TRACESTATE
`

// command builds the whole tree.
func (c *cli) command() *cobra.Command {
	root := &cobra.Command{
		Use:           "sandgate",
		Short:         "Sandboxes for AI agents behind one endpoint",
		Long:          rootHelp,
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          knownCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(c.stdin)
	root.SetOut(c.stdout)
	root.SetErr(c.stderr)
	root.SetUsageTemplate(root.UsageTemplate() + environmentHelp)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usage(cmd, "%v", err) })

	flags := root.PersistentFlags()
	flags.SortFlags = false
	flags.StringVar(&c.address, "address", "", "server to use, instead of SANDGATE_ADDRESS")
	flags.StringVar(&c.token, "token", "", "bearer token, instead of SANDGATE_TOKEN")
	flags.StringVar(&c.tokenFile, "token-file", "", "file with the bearer token, read again when it changes, instead of SANDGATE_TOKEN_FILE")
	flags.StringVar(&c.tenant, "tenant", "", "tenant to look into and clean up, with credentials of the role operator")
	flags.StringVar(&c.caFile, "ca-file", "", "PEM file of certificates to trust, instead of SANDGATE_CA_FILE")
	flags.StringVar(&c.certFile, "cert-file", "", "PEM file of the client's certificate, instead of SANDGATE_CERT_FILE")
	flags.StringVar(&c.keyFile, "key-file", "", "PEM file of the client's key, instead of SANDGATE_KEY_FILE")
	flags.BoolVar(&c.insecure, "insecure", false, "allow a token without TLS to a server elsewhere")
	flags.StringVarP(&c.output, "output", "o", "text", `how to print, errors too: "text" or "json"`)
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))

	root.AddGroup(
		&cobra.Group{ID: "sandboxes", Title: "Sandboxes:"},
		&cobra.Group{ID: "commands", Title: "Commands and files in them:"},
	)
	add := func(group string, commands ...*cobra.Command) {
		for _, command := range commands {
			command.GroupID = group
			root.AddCommand(command)
		}
	}
	add("sandboxes", c.createCommand(), c.lsCommand(), c.infoCommand(), c.topCommand(), c.quotaCommand(), c.watchCommand(), c.updateCommand(),
		c.suspendCommand(), c.resumeCommand(), c.rmCommand(), c.cleanupCommand())
	add("commands", c.runCommand(), c.execCommand(), c.psCommand(), c.attachCommand(),
		c.logsCommand(), c.killCommand(), c.cpCommand(), c.portForwardCommand(), c.urlCommand(), c.sshServerCommand())
	root.AddCommand(c.secretCommand(), build.NewCommand(serve.DefaultStateDir()),
		serve.NewCommand(version), serve.NewTokenCommand(), serve.NewConfigCommand(),
		auditlog.NewCommand(filepath.Join(serve.DefaultStateDir(), "audit.log")),
		c.conformanceCommand(), c.versionCommand())
	return root
}

// knownCommand rejects an unknown command and suggests similar ones.
func knownCommand(root *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if root.SuggestionsMinimumDistance <= 0 {
		root.SuggestionsMinimumDistance = 2
	}
	if close := root.SuggestionsFor(args[0]); len(close) > 0 {
		return usage(root, "unknown command %q; did you mean %s?", args[0], strings.Join(close, " or "))
	}
	return usage(root, "unknown command %q", args[0])
}

// run runs the command line args and returns the exit code of the program.
func (c *cli) run(ctx context.Context, args []string) int {
	root := c.command()
	root.SetArgs(args)
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if c.output != "text" && c.output != "json" {
			return usage(cmd, "--output is text or json, not %q", c.output)
		}
		return nil
	}
	return c.exit(ctx, root.ExecuteContext(ctx))
}

// connect returns the client for the flags and the environment.
func (c *cli) connect(ctx context.Context) (*sandgate.Client, error) {
	opts := append(c.options(), sandgate.WithDialOptions(append(c.dial, grpc.WithUserAgent("sandgate-cli/"+version))...))
	return sandgate.NewClient(ctx, opts...)
}

// options returns the client options that the flags set.
func (c *cli) options() []sandgate.Option {
	var opts []sandgate.Option
	if c.address != "" {
		opts = append(opts, sandgate.WithAddress(c.address))
	}
	if c.token != "" {
		opts = append(opts, sandgate.WithToken(c.token))
	}
	if c.tokenFile != "" {
		opts = append(opts, sandgate.WithTokenFile(c.tokenFile))
	}
	metadata := make(map[string]string)
	if c.tenant != "" {
		metadata["sandgate-tenant"] = c.tenant
	}
	for _, name := range []string{"TRACEPARENT", "TRACESTATE"} {
		// gRPC refuses a call with other characters in its metadata.
		unfit := func(r rune) bool { return r < ' ' || r > '~' }
		if value := os.Getenv(name); value != "" && !strings.ContainsFunc(value, unfit) {
			metadata[strings.ToLower(name)] = value
		}
	}
	if len(metadata) > 0 {
		opts = append(opts, sandgate.WithMetadata(metadata))
	}
	if c.caFile != "" {
		opts = append(opts, sandgate.WithCAFile(c.caFile))
	}
	if c.certFile != "" || c.keyFile != "" {
		opts = append(opts, sandgate.WithCertificate(c.certFile, c.keyFile))
	}
	if c.insecure {
		opts = append(opts, sandgate.WithInsecure())
	}
	return opts
}

// with connects, runs f and disconnects.
func (c *cli) with(cmd *cobra.Command, f func(context.Context, *sandgate.Client) error) error {
	client, err := c.connect(cmd.Context())
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	return f(cmd.Context(), client)
}
