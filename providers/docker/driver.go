package docker

import (
	"context"
	"net"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/directory"
)

// driver makes, observes and removes sandboxes for the Provider's directories.
type driver struct{ p *Provider }

func (d driver) Connect(ctx context.Context, dir directory.Dir, rec *record) (net.Conn, error) {
	return d.p.connectAgent(ctx, dir, rec)
}

func (d driver) Info(name string, rec *record) providers.Info { return d.p.infoOf(name, rec) }

func (d driver) Observe(ctx context.Context, name string, rec *record) (providers.Info, error) {
	return d.p.observe(ctx, name, rec)
}

// Alive lists all running containers once.
func (d driver) Alive(ctx context.Context) func(string, *record) (bool, error) {
	running := running{p: d.p}
	return func(id string, rec *record) (bool, error) {
		if runs, err := running.has(ctx, rec.Container); runs || err != nil {
			return runs, err
		}
		// It may have started after the list.
		claimed := *rec
		claimed.Phase = directory.Active
		info, err := d.p.observe(ctx, id, &claimed)
		return info.State == providers.StateActive, err
	}
}

func (driver) Removal(string, string) (decided bool, failure string) { return false, "" }
