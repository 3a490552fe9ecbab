package serve

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/sandgate/sandgate/cmd/sandgate/internal/telemetry"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/listen"
)

// gcPercent is Go's GOGC where the environment has none. What streams hold while their
// callers do not read is most of a busy server's memory, and garbage adds half to it.
const gcPercent = 50

// run opens what the server needs, and serves until ctx ends.
func (p *program) run(ctx context.Context) (err error) {
	c, cfg := p.config, &p.server
	audit, err := c.Audit.open(c.StateDir, p.stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, audit.close()) }()
	defer audit.reopenOnHangup(ctx, p.log)()
	cfg.Audit, cfg.AuditRequired, cfg.AuditCommandText = audit, c.Audit.Required, c.Audit.CommandText

	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	// gVisor's kernel would inherit the slack, and with it the timers of commands.
	if c.Provider != "local" || filepath.Base(c.Local.Runtime) != "runsc" {
		setTimerSlack(coarseSlack)
	}
	provider, err := p.kind.open(ctx, c, p.log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, provider.Close()) }()
	cfg.Provider = provider

	exporter, err := telemetry.Open(ctx, cfg.Version, p.log)
	if err != nil {
		return err
	}
	defer exporter.Close(ctx)
	cfg.Tracer = exporter.Tracer()
	srv, stop, err := p.start(ctx)
	if err != nil {
		return err
	}
	if err := exporter.Watch(ctx, srv.Registry()); err != nil {
		return errors.Join(err, stop())
	}
	return p.serve(ctx, srv, stop)
}

// start makes the server, and serves its metrics and previews. stop ends all of them.
func (p *program) start(ctx context.Context) (srv *server.Server, stop func() error, err error) {
	c, cfg := p.config, &p.server
	previewListener, err := c.Preview.open(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	adminListener, err := c.Admin.open(ctx, c.Insecure)
	if err != nil {
		return nil, nil, errors.Join(err, closeListener(previewListener))
	}
	var admin *admin
	cfg.Announce = func(at net.Addr) { c.announce(p.stderr, *cfg, at, admin.at) }
	srv, err = server.New(*cfg)
	if err != nil {
		return nil, nil, errors.Join(err, closeListener(adminListener), closeListener(previewListener))
	}
	admin = serveAdmin(adminListener, srv.AdminHandler(c.Admin.Profiles))
	previews := servePreview(srv, previewListener)
	return srv, func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Shutdown.LameDuck+c.Shutdown.Timeout)
		defer cancel()
		return errors.Join(srv.Shutdown(ctx), <-previews, admin.close(ctx))
	}, nil
}

// serve accepts calls until ctx ends, and applies changes of the configuration file. It
// calls stop at the end.
func (p *program) serve(ctx context.Context, srv *server.Server, stop func() error) error {
	if p.config.File != "" {
		p.reload.srv = srv
		end, err := p.reload.watch(ctx, p.config.File)
		if err != nil {
			return errors.Join(err, stop())
		}
		shutdown := stop
		stop = func() error {
			end()
			return shutdown()
		}
	}
	l, err := listen.Open(ctx, p.config.Listen)
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
