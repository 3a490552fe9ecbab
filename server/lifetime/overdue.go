package lifetime

import (
	"time"

	"github.com/sandgate/sandgate/providers"
)

// A running reaper deletes an expired sandbox within a minute. One that is
// overdue for longer waited for a server to start, or could not be deleted, or
// is not overdue at all: the clock was wrong when it was created, or is wrong
// now. In the last case each deletion is a loss, so the reaper deletes few
// until an operator can notice.
const (
	// lateness is how long overdue a sandbox may be to be deleted at once.
	lateness = 5 * time.Minute
	// lateWait is how long a server that has just started keeps the others. A
	// clock that is wrong after a boot is set by then.
	lateWait = 10 * time.Minute
	// A round deletes a tenth of the others, and at least lateLeast.
	lateShare, lateLeast = 10, 10
	// lateMost bounds the memory for them.
	lateMost = 1000
)

// backlog holds the long overdue sandboxes of a round. It keeps a random
// sample, so that sandboxes that cannot be deleted do not block the others for
// ever.
type backlog struct {
	count  int
	sample []providers.Info
	random func(n int) int // from 0 to n-1
}

func (b *backlog) add(info providers.Info) {
	b.count++
	if len(b.sample) < lateMost {
		b.sample = append(b.sample, info)
	} else if i := b.random(b.count); i < lateMost {
		b.sample[i] = info
	}
}

// share returns the sandboxes that this round deletes.
func (b *backlog) share(up time.Duration) []providers.Info {
	if up < lateWait {
		return nil
	}
	n := min(len(b.sample), max(lateLeast, b.count/lateShare))
	for i := range n {
		j := i + b.random(len(b.sample)-i)
		b.sample[i], b.sample[j] = b.sample[j], b.sample[i]
	}
	return b.sample[:n]
}

// overdue returns how long ago a sandbox's lifetime ended, without leaps of the
// wall clock. It is negative while the lifetime lasts.
func (r *Reaper) overdue(info providers.Info) time.Duration {
	over := time.Duration(-1)
	if ttl := info.Spec.TTL; ttl > 0 {
		over = max(over, r.cfg.Clock.Since(info.CreateTime)-ttl)
	}
	if idle := info.Spec.IdleTTL; idle > 0 {
		over = max(over, r.cfg.Clock.Since(info.LastActivity)-idle)
	}
	return over
}
