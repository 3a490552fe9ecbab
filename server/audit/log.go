package audit

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/sandgate/sandgate/server/names"
)

// Log writes audit records as lines of JSON. The lines of one Log
// share "log", a random id, and "seq" numbers them from 1 without gaps, so that
// a missing record is visible.
type Log struct {
	mu  sync.Mutex
	out io.Writer
	h   slog.Handler
	seq uint64
	// torn means that the last line may be incomplete.
	torn bool
}

var _ Sink = (*Log)(nil)

// NewLog returns an Log that writes each record with one Write.
func NewLog(out io.Writer) *Log {
	h := slog.NewJSONHandler(out, nil).WithAttrs([]slog.Attr{slog.String("log", names.NewID(""))})
	return &Log{out: out, h: h}
}

// Audit implements Sink.
func (l *Log) Audit(ctx context.Context, r Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	if l.torn {
		if _, err := l.out.Write([]byte{'\n'}); err != nil {
			return err
		}
	}
	line := slog.NewRecord(time.Now(), slog.LevelInfo, "audit", 0)
	line.AddAttrs(slog.Uint64("seq", l.seq))
	line.AddAttrs(r.attrs()...)
	err := l.h.Handle(ctx, line)
	l.torn = err != nil
	return err
}
