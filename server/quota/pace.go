package quota

import (
	"context"
	"sync"
	"time"
)

// Refusals of one owner: freeRefusals at once, then one each refusalInterval. None
// waits longer than maxRefusalWait.
const (
	freeRefusals    = 20
	refusalInterval = 50 * time.Millisecond
	maxRefusalWait  = time.Second
	// maxWaiting bounds the refusals of one owner that wait, and with them the memory
	// that they take. More are answered at once.
	maxWaiting = 1_000
	// maxPaced is the number of owners from which on those who behave are forgotten.
	maxPaced = 1_000
)

// Pace slows the refusals of an owner that calls on beyond its quotas without a
// pause, so that these calls do not take the server's time from others.
type Pace struct {
	mu     sync.Mutex
	owners map[Owner]*paced
}

type paced struct {
	// next is when the next refusal is due, if all before it are spread evenly.
	next    time.Time
	waiting int
}

// NewPace returns a Pace that has seen no refusals.
func NewPace() *Pace { return &Pace{owners: make(map[Owner]*paced)} }

// Wait returns when a refusal of this owner is due, or when ctx ends.
func (p *Pace) Wait(ctx context.Context, o Owner) {
	wait := p.enter(o)
	if wait <= 0 {
		return
	}
	defer p.leave(o)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// enter counts a refusal. If the result is positive, the caller must wait that long and
// then leave.
func (p *Pace) enter(o Owner) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	one := p.owners[o]
	if one == nil {
		if len(p.owners) >= maxPaced {
			p.forget(now)
		}
		one = &paced{}
		p.owners[o] = one
	}
	// An owner that was quiet has its free refusals again.
	if earliest := now.Add(-freeRefusals * refusalInterval); one.next.Before(earliest) {
		one.next = earliest
	}
	wait := min(one.next.Sub(now), maxRefusalWait)
	if wait < maxRefusalWait {
		one.next = one.next.Add(refusalInterval)
	}
	if wait <= 0 || one.waiting >= maxWaiting {
		return 0
	}
	one.waiting++
	return wait
}

func (p *Pace) leave(o Owner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.owners[o].waiting--
}

// forget drops the owners whose refusals would not wait.
func (p *Pace) forget(now time.Time) {
	for o, one := range p.owners {
		if one.waiting == 0 && one.next.Before(now) {
			delete(p.owners, o)
		}
	}
}
