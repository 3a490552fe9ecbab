package admission

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandgate/sandgate/server/quota"
)

// A connection whose calls of many messages fail is read no faster than the limit per
// second, so that a caller who calls again at once is slowed down by its own flow control.
// So are other connections of its tenant with such calls.
func TestConnectionOfFailedStreamsIsReadSlowly(t *testing.T) {
	const limit, window = 64 << 10, 16 << 10
	synctest.Test(t, func(t *testing.T) {
		requests := quota.NewRequests(limit)
		connect := func() (*clientConn, *pipeConn) {
			p := newPipe(t, "192.0.2.1")
			c := newConnLimiter().track(p)
			t.Cleanup(func() { _ = c.Close() })
			_ = c.authenticated("", nil)
			return c, p
		}
		// failed sends bytes, which no handler takes, and fails a call. It returns how long the
		// next byte waits.
		failed := func(c *clientConn, p *pipeConn, bytes int, tenants ...string) time.Duration {
			for _, tenant := range tenants {
				q := requests.Stream(tenant, &c.received)
				send(c, p, bytes)
				q.Dropped(window)
				q.Release()
			}
			begun := time.Now()
			send(c, p, 1)
			return time.Since(begun)
		}
		open := requests.Stream("a", nil) // the tenant has another call meanwhile
		defer open.Release()
		one, onePipe := connect()
		two, twoPipe := connect()
		if took := failed(one, onePipe, window/2, "a"); took != time.Second/8 {
			t.Errorf("after an eighth of the limit a read takes %v", took)
		}
		if took := failed(one, onePipe, 4*window, "a"); took != time.Second/4 {
			t.Errorf("a call counts for more than its window: a read takes %v", took)
		}
		q := requests.Stream("a", &one.received)
		send(one, onePipe, window)
		q.Dropped(window)
		q.Release()
		if took := failed(two, twoPipe, window, "a"); took != time.Second/2 {
			t.Errorf("after a call of another connection failed too, a read takes %v", took)
		}
		shared, pipe := connect()
		if took := failed(shared, pipe, window, "a", "b"); took != 0 {
			t.Errorf("the connection of several tenants is not read for %v", took)
		}
	})
}
