package quota

import (
	"container/list"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// requestBytes is what a call without a message counts: its goroutine, its
	// stream and its record.
	requestBytes = 16 << 10
	// fieldBytes is what a decoded field takes in memory, about.
	fieldBytes = 80
	// retryRequest is when a caller at the bound should try again.
	retryRequest = time.Second
	// maxPause bounds how long a connection is not read at a time. Pings and window
	// updates wait too.
	maxPause = time.Second
)

// Limits that are not quotas and are reported as such, by their names in the configuration
// file: the bound of Requests, and that of the Uploads at a time.
const (
	MaxRequestBytes = "max_request_bytes"
	MaxUploads      = "max_uploads"
)

// Requests bounds the bytes of requests that the calls of each tenant make this server
// hold: messages that arrive, and those whose calls run. gRPC reads a message as a whole,
// and tells nobody its length before, so what has arrived of messages is counted by
// connection.
//
// Beyond the bound, the calls whose messages have been arriving for the longest time are
// cut. A call is rejected only if what others hold has arrived.
//
// What was received for calls that are cut is bounded by the limit per second. A caller
// that calls again at once would keep the processors busy otherwise.
type Requests struct {
	limit int64
	now   func() time.Time
	// began is what pauses are counted from, by the monotonic clock: they must end in
	// time if the wall clock is set back.
	began time.Time

	mu      sync.Mutex
	tenants map[string]*tenantRequests
}

// tenantRequests is what one tenant's calls hold. Requests.mu guards it.
type tenantRequests struct {
	name  string
	calls int
	// bytes counts the calls, the messages that have arrived, and those arriving.
	bytes    int64
	arriving list.List // of *Request, the oldest first
	// paced is until when no more bytes may be cut, since Requests.began.
	paced time.Duration
}

// arrivals are the calls of one tenant whose messages arrive on one connection.
// Requests.mu guards it.
type arrivals struct {
	tenant *tenantRequests
	calls  list.List // of *Request, the oldest first
	// since is what the connection had pending when the oldest began, or less.
	since int64
	// bytes is what has arrived since then and was not taken by a handler.
	bytes int64
}

// Received counts what a connection has received. The zero value has received nothing.
type Received struct {
	bytes, taken atomic.Int64
	// expecting is the number of calls whose messages arrive.
	expecting atomic.Int32
	// unread is until when the connection is not read, in nanoseconds since Requests.began.
	unread atomic.Int64
	// shared is set once calls of several tenants came, as through a proxy: the connection
	// of a flood and of others is always read.
	shared atomic.Bool

	requests *Requests // set before expecting and unread are
	// Requests.mu guards what follows.
	tenant   string // of the first call
	arrivals map[*tenantRequests]*arrivals
	dropped  int64 // what was pending when a Stream failed last
}

// Pending returns the bytes of messages that no handler has taken, and all others.
func (c *Received) Pending() int64 {
	if c == nil {
		return 0
	}
	return c.bytes.Load() - c.taken.Load()
}

// Add counts bytes that were read from the connection.
func (c *Received) Add(n int) {
	c.bytes.Add(int64(n))
	if c.expecting.Load() > 0 {
		c.requests.arrived(c)
	}
}

// Pause returns how long the connection must not be read: more than 0 after calls on it
// were cut, and, while messages arrive on it, after others of its tenant were.
func (c *Received) Pause() time.Duration {
	until := time.Duration(c.unread.Load())
	if c.expecting.Load() > 0 {
		until = max(until, c.requests.pacedUntil(c))
	}
	if until == 0 || c.shared.Load() {
		return 0
	}
	return min(until-c.requests.elapsed(), maxPause)
}

// Take counts the bytes of a message that a handler took.
func (c *Received) Take(n int) {
	if c != nil {
		c.taken.Add(int64(n))
	}
}

// NewRequests returns a bound of so many bytes for each tenant; 0: no bound.
func NewRequests(limit int64) *Requests {
	return &Requests{limit: limit, now: time.Now, began: time.Now(), tenants: make(map[string]*tenantRequests)}
}

// Request is a call whose only message arrives, or has arrived.
type Request struct {
	all    *Requests
	tenant *tenantRequests
	conn   *Received // nil: what arrives is not counted
	since  int64
	bytes  int64
	// onCut is called if the call must end before its message has arrived.
	onCut func(exceeded error)
	// exceeded is why the call was cut.
	exceeded error
	// Its places in the lists of its tenant and its connection; nil: it has arrived,
	// was cut, or has ended.
	ofTenant, ofConn *list.Element
}

// Expect counts a call of a tenant until Release. since is what conn had pending when the
// call began. cut is called at most once, if the call must end before its message has
// arrived. It must not call r. Errors, also that of cut, are an *Exceeded.
func (r *Requests) Expect(tenant string, conn *Received, since int64, cut func(exceeded error)) (*Request, error) {
	if r.limit == 0 {
		return nil, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.enter(tenant)
	q := &Request{all: r, tenant: t, conn: conn, since: since, onCut: cut}
	if err := q.hold(requestBytes); err != nil {
		q.release()
		return nil, err
	}
	q.ofTenant = t.arriving.PushBack(q)
	if conn != nil {
		q.ofConn = conn.expect(q)
	}
	return q, nil
}

// enter counts a call of a tenant until Request.release.
func (r *Requests) enter(tenant string) *tenantRequests {
	t := r.tenants[tenant]
	if t == nil {
		t = &tenantRequests{name: tenant}
		r.tenants[tenant] = t
	}
	t.calls++
	return t
}

// Stream counts a call of a tenant on which the caller sends many messages, until Release.
// What it holds does not count: their length and the number of such calls bound it.
func (r *Requests) Stream(tenant string, conn *Received) *Request {
	if r.limit == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	q := &Request{all: r, tenant: r.enter(tenant), conn: conn, since: conn.Pending()}
	if conn != nil {
		conn.serve(q)
	}
	return q
}

// Dropped counts what the connection of a failed Stream has received since it began, and no
// handler took, at most so many bytes, as bytes of a call that was cut. They may be another
// call's.
func (q *Request) Dropped(most int64) {
	if q == nil || q.conn == nil {
		return
	}
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	pending := q.conn.Pending()
	before := max(q.conn.dropped, q.since)
	q.all.pace(q.tenant, q.conn, min(max(pending-before, 0), most))
	q.conn.dropped = pending
}

// serve notes whose calls the connection has.
func (c *Received) serve(q *Request) {
	if c.requests == nil {
		c.requests, c.tenant = q.all, q.tenant.name
	}
	if c.tenant != q.tenant.name {
		c.shared.Store(true)
	}
}

// expect adds a call to those whose messages arrive.
func (c *Received) expect(q *Request) *list.Element {
	c.serve(q)
	a := c.arrivals[q.tenant]
	if a == nil {
		if c.arrivals == nil {
			c.arrivals = make(map[*tenantRequests]*arrivals, 1)
		}
		a = &arrivals{tenant: q.tenant, since: q.since}
		c.arrivals[q.tenant] = a
	}
	c.expecting.Add(1)
	return a.calls.PushBack(q)
}

// Arrived replaces what has arrived of a message by its size and that of its fields. The
// error is an *Exceeded.
func (q *Request) Arrived(bytes, fields int) error {
	if q == nil {
		return nil
	}
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	if q.exceeded != nil {
		return q.exceeded
	}
	q.leave()
	return q.hold(int64(bytes) + fieldBytes*int64(fields))
}

// Release ends what the call counts. Only its first call has an effect.
func (q *Request) Release() {
	if q == nil {
		return
	}
	q.all.mu.Lock()
	defer q.all.mu.Unlock()
	q.release()
}

func (q *Request) release() {
	if q.tenant == nil {
		return
	}
	t := q.tenant
	q.leave()
	t.bytes -= q.bytes
	if t.calls--; t.calls == 0 {
		delete(q.all.tenants, t.name)
	}
	q.tenant = nil
}

// hold adds bytes, and cuts calls whose messages arrive if they are too many.
func (q *Request) hold(bytes int64) error {
	t := q.tenant
	q.all.cut(t, bytes)
	if t.bytes+bytes > q.all.limit {
		return t.exceeded(q.all.limit, bytes)
	}
	q.bytes += bytes
	t.bytes += bytes
	return nil
}

// leave takes the call from those whose messages arrive.
func (q *Request) leave() {
	if q.ofTenant == nil {
		return
	}
	q.tenant.arriving.Remove(q.ofTenant)
	q.ofTenant = nil
	if q.ofConn == nil {
		return
	}
	a := q.conn.arrivals[q.tenant]
	a.calls.Remove(q.ofConn)
	q.ofConn = nil
	q.conn.expecting.Add(-1)
	if oldest := a.calls.Front(); oldest != nil {
		a.since = oldest.Value.(*Request).since
		a.count(q.conn)
		return
	}
	q.tenant.bytes -= a.bytes
	delete(q.conn.arrivals, q.tenant)
}

// arrived counts what has arrived on a connection.
func (r *Requests) arrived(c *Received) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// There is one tenant, unless a proxy shares the connection.
	for _, a := range c.arrivals {
		a.count(c)
		r.cut(a.tenant, 0)
	}
}

func (a *arrivals) count(c *Received) {
	pending := c.Pending()
	a.since = min(a.since, pending)
	a.tenant.bytes += pending - a.since - a.bytes
	a.bytes = pending - a.since
}

// cut cuts calls whose messages arrive, the oldest first, until a tenant has room for more.
func (r *Requests) cut(t *tenantRequests, more int64) {
	for t.bytes+more > r.limit {
		oldest := t.arriving.Front()
		if oldest == nil {
			return
		}
		q := oldest.Value.(*Request)
		q.exceeded = t.exceeded(r.limit, more)
		held := t.bytes
		q.leave()
		t.bytes -= q.bytes
		q.bytes = 0
		// More may have arrived than was freed.
		r.pace(t, q.conn, max(held-t.bytes, 0))
		q.onCut(q.exceeded)
	}
}

// pace stops reading until the bytes that were cut are within the limit per second: the
// connection of the call, which may be nil, and those on which messages of the tenant
// arrive.
func (r *Requests) pace(t *tenantRequests, c *Received, cut int64) {
	now := r.elapsed()
	owed := time.Duration(float64(cut) / float64(r.limit) * float64(time.Second))
	t.paced = min(max(t.paced, now)+owed, now+maxPause)
	if c != nil {
		c.unread.Store(int64(t.paced))
	}
}

func (r *Requests) elapsed() time.Duration { return r.now().Sub(r.began) }

// pacedUntil returns when the connection may be read again.
func (r *Requests) pacedUntil(c *Received) (until time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for t := range c.arrivals {
		until = max(until, t.paced)
	}
	return until
}

func (t *tenantRequests) exceeded(limit, asked int64) error {
	return &Exceeded{Quota: MaxRequestBytes, Owner: Owner{Tenant: t.name}, Limit: limit, Used: t.bytes, Asked: asked, RetryAfter: retryRequest}
}
