// Package serve is the command "sandgate serve": it reads the configuration, wires
// provider, authentication and listeners, and runs the server.
package serve

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandgate/sandgate/cmd/sandgate/internal/settings"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/policy"
)

// NewCommand returns the command "serve" of a program of this version.
func NewCommand(version string) *cobra.Command {
	flags := defaults()
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the server",
		Long: `Serve runs the server. TLS and authentication are required to listen on other
interfaces than loopback and unix sockets.

On the first SIGTERM or SIGINT the server stops accepting calls, ends its streams
and exits; on the second it exits at once. Sandboxes and their commands keep
running, and a restarted server finds them again.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return serve(cmd.Context(), version, flags, cmd.Flags().Changed, cmd.ErrOrStderr())
		},
	}
	cmd.Flags().SortFlags = false
	settings.AddFlags(cmd.Flags(), &flags)
	_ = cmd.RegisterFlagCompletionFunc("provider", cobra.FixedCompletions(kindNames(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// forCallers sets what depends on who calls.
func (c config) forCallers(cfg *server.Config, kind kind, authenticated bool) {
	// Caller and operator are the same person then.
	personal := !authenticated && !c.Insecure && !beyondLoopback(c.Listen)
	cfg.EgressAnyPublic = personal
	if len(cfg.Templates) == 0 {
		cfg.Templates = []policy.Template{builtinTemplate(personal, strings.HasPrefix(c.Listen, "unix:"))}
	}
	if kind.operatorsImages && (authenticated || c.Insecure) {
		requireImageLists(cfg.Templates)
	}
}

// derived sets the defaults that depend on other keys.
func (c config) derived() config {
	if c.RequireLimits == nil {
		required := c.Provider == "local" && beyondLoopback(c.Listen)
		c.RequireLimits = &required
	}
	if c.Local.DiskOvercommit == 0 && beyondLoopback(c.Listen) {
		c.Local.DiskOvercommit = 1
	}
	return c
}

// serve runs the server until ctx ends. given reports whether a flag was given.
func serve(ctx context.Context, version string, flags config, given func(flag string) bool, stderr io.Writer) (err error) {
	c, err := load(flags, given)
	if err != nil {
		return flags.Log.report(stderr, err)
	}
	started := c // as the file and the flags have it
	defer func() { err = c.Log.report(stderr, err) }()
	c = c.derived()
	logger, err := newLogger(c.Log.Level, c.Log.Format, stderr)
	if err != nil {
		return err
	}
	if c.StateDir, err = makeStateDir(c.StateDir); err != nil {
		return err
	}
	p := &program{config: c, log: logger, stderr: stderr, reload: &reloader{
		load: func() (config, error) { return load(flags, given) }, log: logger, current: started,
	}}
	if err := p.prepare(ctx, version); err != nil {
		return err
	}
	return p.run(ctx)
}

// makeStateDir makes the state directory, unless it exists, and returns its absolute path.
func makeStateDir(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("state directory: %w; give another with --state-dir", err)
	}
	return dir, nil
}

// program is a server with all that runs beside it in its process.
type program struct {
	config config
	// server is the server's configuration, whose open resources run fills in.
	server server.Config
	kind   kind
	log    *slog.Logger
	stderr io.Writer
	reload *reloader
}

// prepare translates the configuration. It opens nothing but what authenticates callers,
// which ends with ctx.
func (p *program) prepare(ctx context.Context, version string) error {
	c := p.config
	cfg, err := c.server()
	if err != nil {
		return err
	}
	cfg.Version, cfg.Logger, cfg.Insecure, cfg.RequireLimits = version, p.log, c.Insecure, *c.RequireLimits
	if cfg.TLS, err = c.tls(p.log); err != nil {
		return err
	}
	// Before anything uses client-go, whose log is global.
	quietClientGo(p.log)
	auth, err := newAuthenticator(ctx, c, p.log)
	if err != nil {
		return err
	}
	if auth != nil {
		cfg.Authenticator, p.reload.auth, cfg.Revocations = auth, auth, auth.certificates.Revoked
	}
	if p.kind, err = c.kind(); err != nil {
		return err
	}
	c.forCallers(&cfg, p.kind, auth != nil)
	cfg.Timing.LameDuck, cfg.Timing.Drain, cfg.Timing.ConnectionAge = c.Shutdown.LameDuck, max(c.Shutdown.Drain, 1), c.MaxConnectionAge
	cfg.SpecSecret, err = c.specSecret()
	p.server = cfg
	return err
}
