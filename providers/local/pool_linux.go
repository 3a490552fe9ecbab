package local

import (
	"context"
	"sync"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/pool"
	"github.com/sandgate/sandgate/providers/local/image"
)

const (
	// firstCommand is how long after a creation its caller is left alone.
	firstCommand = 100 * time.Millisecond
	// fillGrace bounds how long creations can keep a pool from being filled.
	fillGrace = time.Second
)

func checkPool(want providers.Pool) error {
	if err := pool.CheckTemplate(want); err != nil {
		return err
	}
	if want.Spec.Image != "" {
		if _, err := image.Parse(want.Spec.Image); err != nil {
			return err
		}
	}
	if err := checkResources(want.Spec.Resources); err != nil {
		return err
	}
	_, err := decodeOptions(want.Spec)
	return err
}

// foreground counts the creations that callers wait for.
type foreground struct {
	mu    sync.Mutex
	calls int
	last  time.Time // when the last one ended
}

// enter counts a creation until the returned function is called.
func (f *foreground) enter() func() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.calls--
		f.last = time.Now()
	}
}

// quiet reports whether no creation runs and the first command of the last one is
// likely to have ended.
func (f *foreground) quiet() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls == 0 && time.Since(f.last) > firstCommand
}

// awaitQuiet lets callers go first.
func (p *Provider) awaitQuiet(ctx context.Context) error {
	tick := time.NewTicker(firstCommand / 4)
	defer tick.Stop()
	for until := time.Now().Add(fillGrace); !p.foreground.quiet() && time.Now().Before(until); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
