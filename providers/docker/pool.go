package docker

import (
	"context"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/pool"
)

// refillDelay leaves the first command of a claimed sandbox alone.
const refillDelay = 100 * time.Millisecond

// KeepPools drops what no pool needs before it returns.
func (p *Provider) KeepPools(ctx context.Context, pools []providers.Pool) error {
	return p.store.KeepPools(ctx, pools)
}

// PoolStatus counts what the state directory holds, whichever server made it.
func (p *Provider) PoolStatus(ctx context.Context, template string) (providers.PoolStatus, error) {
	return p.store.PoolStatus(ctx, template)
}

func checkPool(want providers.Pool) error {
	if err := pool.CheckTemplate(want); err != nil {
		return err
	}
	if want.Spec.Image != "" {
		if _, err := checkImage(want.Spec.Image); err != nil {
			return err
		}
	}
	_, err := decodeOptions(want.Spec)
	return err
}
