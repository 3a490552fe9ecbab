// Package serve is the command "sandgate serve": it reads the configuration, wires
// provider, authentication and listeners, and runs the server.
package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/listen"
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
	addFlags(cmd.Flags(), &flags)
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
	stateDir, err := filepath.Abs(c.StateDir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return fmt.Errorf("state directory: %w; give another with --state-dir", err)
	}
	c.StateDir = stateDir

	cfg, err := c.server()
	if err != nil {
		return err
	}
	cfg.Version, cfg.Logger, cfg.Insecure, cfg.RequireLimits = version, logger, c.Insecure, *c.RequireLimits
	if cfg.TLS, err = c.tls(logger); err != nil {
		return err
	}
	// Before anything uses client-go, whose log is global.
	quietClientGo(logger)
	auth, err := newAuthenticator(ctx, c, logger)
	if err != nil {
		return err
	}
	if auth != nil {
		cfg.Authenticator = auth
	}
	kind, err := c.kind()
	if err != nil {
		return err
	}
	c.forCallers(&cfg, kind, auth != nil)
	cfg.Timing.LameDuck, cfg.Timing.Drain, cfg.Timing.ConnectionAge = c.Shutdown.LameDuck, max(c.Shutdown.Drain, 1), c.MaxConnectionAge
	if cfg.SpecSecret, err = c.specSecret(); err != nil {
		return err
	}
	audit, err := c.Audit.open(stateDir, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, audit.close()) }()
	defer audit.reopenOnHangup(ctx, logger)()
	cfg.Audit, cfg.AuditRequired, cfg.AuditCommandText = audit, c.Audit.Required, c.Audit.CommandText

	// gVisor's kernel would inherit the slack, and with it the timers of commands.
	if c.Provider != "local" || filepath.Base(c.Local.Runtime) != "runsc" {
		setTimerSlack(coarseSlack)
	}
	provider, err := kind.open(ctx, c, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, provider.Close()) }()
	cfg.Provider = provider

	telemetry, err := openTelemetry(ctx, version, logger)
	if err != nil {
		return err
	}
	defer telemetry.close(ctx)
	cfg.Tracer = telemetry.tracer()

	previewListener, err := c.Preview.open(ctx, &cfg)
	if err != nil {
		return err
	}
	adminListener, err := c.Admin.open(ctx, c.Insecure)
	if err != nil {
		return errors.Join(err, closeListener(previewListener))
	}
	var admin *admin
	cfg.Announce = func(at net.Addr) { c.announce(stderr, cfg, at, admin.at) }
	srv, err := server.New(cfg)
	if err != nil {
		return errors.Join(err, closeListener(adminListener), closeListener(previewListener))
	}
	admin = serveAdmin(adminListener, srv.AdminHandler(c.Admin.Profiles))
	previews := servePreview(srv, previewListener)
	stop := func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Shutdown.LameDuck+c.Shutdown.Timeout)
		defer cancel()
		return errors.Join(srv.Shutdown(ctx), <-previews, admin.close(ctx))
	}
	if err := telemetry.watch(ctx, srv.Registry()); err != nil {
		return errors.Join(err, stop())
	}
	if c.File != "" {
		r := &reloader{
			load: func() (config, error) { return load(flags, given) }, log: logger, srv: srv, auth: auth, current: started,
		}
		end, err := r.watch(ctx, c.File)
		if err != nil {
			return errors.Join(err, stop())
		}
		shutdown := stop
		stop = func() error {
			end()
			return shutdown()
		}
	}
	l, err := listen.Open(ctx, c.Listen)
	if err != nil {
		return errors.Join(err, stop())
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	select {
	case err := <-served:
		return errors.Join(err, l.Close(), stop())
	case <-ctx.Done():
		return errors.Join(stop(), <-served)
	}
}
