package providers

import (
	"context"
	"sync/atomic"
)

type pullsKey struct{}

// WithPulls returns a context for one Create, and a function that reports whether this
// waited for an image that the provider did not have.
func WithPulls(ctx context.Context) (context.Context, func() bool) {
	pulled := new(atomic.Bool)
	return context.WithValue(ctx, pullsKey{}, pulled), pulled.Load
}

// NotePull notes that the Create with this context waits for an image. Providers that do
// not pull images themselves never call it.
func NotePull(ctx context.Context) {
	if pulled, ok := ctx.Value(pullsKey{}).(*atomic.Bool); ok {
		pulled.Store(true)
	}
}
