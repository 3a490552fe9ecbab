package local

import (
	"context"

	"github.com/sandgate/sandgate/providers"
)

// driver makes, observes and removes sandboxes for the Provider's directories.
type driver struct{ p *Provider }

func (d driver) Info(name string, rec *record) providers.Info { return d.p.info(name, rec) }

func (d driver) Observe(_ context.Context, name string, rec *record) (providers.Info, error) {
	return d.p.info(name, rec), nil
}

func (driver) Alive(context.Context) func(string, *record) (bool, error) {
	return func(_ string, rec *record) (bool, error) { return rec.Init.Alive(), nil }
}

func (d driver) Removal(name, incarnation string) (decided bool, failure string) {
	return d.p.removals.Of(name, incarnation)
}
