package egress

import (
	"net"
	"time"

	"golang.org/x/time/rate"
)

// Rate bounds the bytes per second of the connections that share it.
type Rate struct {
	limiter *rate.Limiter
	// turn is held by the connection that waits for the limiter. The others wait for their
	// turn, in order, and have reserved nothing: a connection that ends meanwhile delays
	// none of those that come after it.
	turn chan struct{}
}

// NewRate returns a rate of so many bytes per second, of which burst may pass at once.
func NewRate(bytes, burst int) *Rate {
	return &Rate{limiter: rate.NewLimiter(rate.Limit(bytes), burst), turn: make(chan struct{}, 1)}
}

// Pace makes the connection wait until r, which connections may share, permits what it
// carries in either direction. Whoever sends faster is held up by flow control. If r is
// nil, nothing waits. Pace must be called before Relay, if at all.
func (c *Conn) Pace(r *Rate) { c.rate = r }

// await waits until n bytes may pass, the connection is cut, or ended is closed, which may
// be nil.
func (c *Conn) await(n int, ended <-chan struct{}) error {
	for c.rate != nil && n > 0 {
		some := min(n, c.rate.limiter.Burst())
		n -= some
		if err := c.pass(some, ended); err != nil {
			return err
		}
		c.touch()
	}
	return nil
}

// pass waits until a burst or less may pass.
func (c *Conn) pass(n int, ended <-chan struct{}) error {
	select {
	case c.rate.turn <- struct{}{}:
		defer func() { <-c.rate.turn }()
	case <-c.cut:
		return c.cause
	case <-ended:
		return net.ErrClosed
	}
	reserved := c.rate.limiter.ReserveN(time.Now(), n)
	delay := reserved.Delay()
	if delay == 0 {
		return nil
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-c.cut:
		reserved.Cancel()
		return c.cause
	case <-ended:
		reserved.Cancel()
		return net.ErrClosed
	}
}
