package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sandgate/sandgate/cmd/sandgate/internal/settings"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/reload"
)

// reloadInterval is the time between two looks at the configuration file.
const reloadInterval = time.Second

// reloadTimeout bounds what a new configuration sets in motion.
const reloadTimeout = 5 * time.Minute

// reloads reports whether a change of a key in the configuration file applies
// without a restart.
func reloads(key string) bool {
	switch key {
	case "limits.max_message_bytes", "limits.max_request_bytes", "limits.max_creations", "limits.max_connections",
		"limits.max_uploads", "limits.max_forwards", "limits.max_egress_connections", "limits.max_egress_bytes_per_second":
		return false
	case "access", "egress_groups", "templates", "webhooks":
		return true
	default:
		section, _, _ := strings.Cut(key, ".")
		return slices.Contains([]string{"auth", "limits", "quotas"}, section)
	}
}

// reloader applies changes of the configuration file to a running server. A file that
// it refuses leaves everything as it is.
type reloader struct {
	load    func() (config, error)
	log     *slog.Logger
	srv     *server.Server
	auth    *authenticator // nil: none
	current config         // in force
	waiting []string       // keys whose change needs a restart, as logged last
	failing string         // the error that was counted last
}

// watch applies changes of the file until ctx ends.
func (r *reloader) watch(ctx context.Context, file string) (stop func(), err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	first := true
	files, err := reload.Open(r.log, func([][]byte) (struct{}, error) {
		if first {
			first = false
			return struct{}{}, r.replace(ctx) // It may have changed since the start.
		}
		err := r.apply(ctx)
		if err == nil && ctx.Err() == nil {
			r.log.InfoContext(ctx, "the configuration file was reloaded", "file", file)
		}
		return struct{}{}, err
	}, file)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(reloadInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				files.Get()
			}
		}
	}()
	return func() {
		cancel(nil)
		<-done
	}, nil
}

// apply reads the file and puts it in force.
func (r *reloader) apply(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
	defer cancel()
	err := r.replace(ctx)
	// Files are read again each second while they are wrong.
	if text := fmt.Sprint(err); err == nil || text != r.failing {
		r.failing = text
		r.srv.CountReload(err)
	}
	return err
}

func (r *reloader) replace(ctx context.Context) error {
	wanted, err := r.load()
	if err != nil {
		return err
	}
	next, waiting := r.merge(wanted)
	if !slices.Equal(waiting, r.waiting) && len(waiting) > 0 {
		r.log.WarnContext(ctx, "changes of the configuration file wait for a restart", "keys", waiting)
	}
	if reflect.DeepEqual(next, r.current) {
		r.waiting = waiting
		return nil
	}
	cfg, err := next.server()
	if err != nil {
		return err
	}
	kind, err := next.kind()
	if err != nil {
		return err
	}
	next.forCallers(&cfg, kind, r.auth != nil)
	var g *generation
	if !reflect.DeepEqual(next.Auth, r.current.Auth) {
		if g, err = r.auth.prepare(next, r.log); err != nil {
			return err
		}
	}
	inForce := func() {
		if g != nil {
			r.auth.current.Swap(g).stop()
		}
	}
	if err := r.srv.Reload(ctx, cfg, inForce); err != nil {
		if g != nil {
			g.stop()
		}
		return err
	}
	r.current, r.waiting = next, waiting
	return nil
}

// merge returns the configuration in force with the keys of another that need no
// restart, and the keys that do.
func (r *reloader) merge(wanted config) (next config, waiting []string) {
	next = r.current
	to, from := settings.Options(&next), settings.Options(&wanted)
	for i, o := range from {
		switch {
		case o.Key == "" || reflect.DeepEqual(to[i].Value.Interface(), o.Value.Interface()):
		case reloads(o.Key):
			to[i].Value.Set(o.Value)
		default:
			waiting = append(waiting, o.Key)
		}
	}
	return next, waiting
}

// authenticator is one that a new configuration replaces.
type authenticator struct {
	ctx     context.Context //nolint:containedctx // the server's life, which ends what authenticators fetch
	current atomic.Pointer[generation]
	// certificates stays the same: tls waits for a restart.
	certificates authn.Certificates
}

// generation is an authenticator with the end of what it does in the background.
type generation struct {
	authn.Authenticator
	stop func()
}

var _ authn.Authenticator = (*authenticator)(nil)

// newAuthenticator returns nil if no authentication is configured.
func newAuthenticator(ctx context.Context, c config, logger *slog.Logger) (*authenticator, error) {
	certificates, err := c.TLS.certificates(logger)
	if err != nil {
		return nil, err
	}
	a := &authenticator{ctx: ctx, certificates: certificates}
	g, err := a.open(c, logger)
	if err != nil || g == nil {
		return nil, err
	}
	a.current.Store(g)
	return a, nil
}

func (a *authenticator) open(c config, logger *slog.Logger) (*generation, error) {
	ctx, cancel := context.WithCancelCause(a.ctx)
	stop := func() { cancel(nil) }
	inner, err := c.authenticator(ctx, a.certificates, logger)
	if err != nil || inner == nil {
		stop()
		return nil, err
	}
	return &generation{inner, stop}, nil
}

// prepare opens the authenticator of another configuration. a may be nil.
func (a *authenticator) prepare(c config, logger *slog.Logger) (g *generation, err error) {
	if a != nil {
		if g, err = a.open(c, logger); err != nil {
			return nil, err
		}
	}
	if g == nil {
		return nil, errors.New("auth: authentication cannot begin or end without a restart")
	}
	return g, nil
}

// Authenticate implements authn.Authenticator.
func (a *authenticator) Authenticate(ctx context.Context) (authn.Principal, error) {
	return a.current.Load().Authenticate(ctx)
}

// Name implements authn.Authenticator.
func (a *authenticator) Name() string { return a.current.Load().Name() }
