package lifetime

import (
	"time"

	"github.com/sandgate/sandgate/providers"
)

// A running reaper deletes what is due within a minute. What is overdue for
// longer has waited for a server to start, could not be deleted, or is not
// overdue at all: the clock was wrong when the sandbox was created, or is wrong
// now. In the last case each deletion is a loss, so they are few until somebody
// can have noticed.
const (
	// lateness is how long overdue what the reaper does not delete at once is.
	lateness = 5 * time.Minute
	// lateWait is how long a server that has just started leaves such sandboxes
	// alone. A clock that is wrong after a boot is set by then.
	lateWait = 10 * time.Minute
	// Of the others a round deletes a tenth, and no fewer than lateLeast.
	lateShare, lateLeast = 10, 10
	// lateMost bounds the memory for them.
	lateMost = 1000
)

// backlog is what a round finds long overdue. It keeps a random sample of that,
// so that those that cannot be deleted do not keep the others waiting for ever.
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

// share is what this round deletes.
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

// overdue is how long ago a sandbox's lifetime ended, without leaps of the wall
// clock. It is negative while the lifetime lasts.
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
