package streaming

import (
	"context"
	"errors"
	"runtime"
)

// append stores a copy of p. It waits for room if the policy is Block.
func (l *Log) append(ctx context.Context, s Stream, p []byte) error {
	for len(p) > 0 {
		n, err := l.Fill(s, func(b []byte) (int, error) { return copy(b, p), nil })
		p = p[n:]
		switch {
		case errors.Is(err, ErrFull) && ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, ErrFull):
			runtime.Gosched()
		case err != nil:
			return err
		}
	}
	return nil
}

// held returns the bytes that logs hold in memory.
func (b *Budget) held() int64 {
	if b == nil {
		return 0
	}
	return b.used.Load()
}
