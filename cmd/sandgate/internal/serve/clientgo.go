package serve

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"k8s.io/klog/v2"
)

// quietClientGo redirects client-go's log, which reports every broken stream as an
// error, to the debug level of logger. That log is global and must not be set while
// anything uses client-go, so the first call sets it and later calls replace the
// logger behind it.
func quietClientGo(logger *slog.Logger) {
	clientGoLog.Store(logger)
	setClientGoLog()
}

var (
	clientGoLog    atomic.Pointer[slog.Logger]
	setClientGoLog = sync.OnceFunc(func() {
		klog.SetSlogLogger(slog.New(demoted{func() slog.Handler { return clientGoLog.Load().Handler() }}))
	})
)

// demoted passes every record on to a handler at the debug level.
type demoted struct{ to func() slog.Handler }

func (d demoted) Enabled(ctx context.Context, _ slog.Level) bool {
	return d.to().Enabled(ctx, slog.LevelDebug)
}

// Handle checks the level again: klog passes errors on without a check.
func (d demoted) Handle(ctx context.Context, r slog.Record) error {
	h := d.to()
	if !h.Enabled(ctx, slog.LevelDebug) {
		return nil
	}
	r.Level = slog.LevelDebug
	return h.Handle(ctx, r)
}

func (d demoted) WithAttrs(attrs []slog.Attr) slog.Handler {
	return demoted{func() slog.Handler { return d.to().WithAttrs(attrs) }}
}

func (d demoted) WithGroup(name string) slog.Handler {
	return demoted{func() slog.Handler { return d.to().WithGroup(name) }}
}
