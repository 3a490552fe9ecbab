package egress

import (
	"time"

	"golang.org/x/time/rate"
)

// Pace makes the connection wait until bytes, which connections may share, permits what it
// carries in either direction. Whoever sends faster is held up by flow control. It must be
// called before Relay, if at all.
func (c *Conn) Pace(bytes *rate.Limiter) { c.bytes = bytes }

// await waits until n bytes may pass, or the connection is cut.
func (c *Conn) await(n int) error {
	for c.bytes != nil && n > 0 {
		some := min(n, c.bytes.Burst())
		n -= some
		delay := c.bytes.ReserveN(time.Now(), some).Delay()
		if delay == 0 {
			continue
		}
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-c.cut:
			timer.Stop()
			return c.cause
		}
		c.touch()
	}
	return nil
}
