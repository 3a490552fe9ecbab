package webhook

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandgate/sandgate/server/events"
)

// request is an attempt as a receiver sees it.
type request struct {
	id    string
	began time.Time
	took  time.Duration
	ok    bool
}

// clocked is a receiver in a bubble of synctest, where hours pass at once. It stands in
// for the network.
type clocked struct {
	answer func(*http.Request) (*http.Response, error)

	mu   sync.Mutex
	seen []request
}

var _ http.RoundTripper = (*clocked)(nil)

func (c *clocked) RoundTrip(r *http.Request) (*http.Response, error) {
	now := request{id: r.Header.Get("webhook-id"), began: time.Now()}
	answer, err := c.answer(r)
	now.took, now.ok = time.Since(now.began), err == nil && answer.StatusCode/100 == 2
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = append(c.seen, now)
	return answer, err
}

// delivered returns the ids of the events that the receiver has accepted.
func (c *clocked) delivered() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ids []string
	for _, r := range c.seen {
		if r.ok {
			ids = append(ids, r.id)
		}
	}
	return ids
}

func accepted() *http.Response {
	return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody}
}

// run sends to the receiver, with the server's pauses between attempts, until the test
// ends. It returns when nothing that happens from then on is missed.
func (c *clocked) run(t *testing.T) (h *harness, dropped func() int) {
	t.Helper()
	h = newHarness(t)
	drops := 0
	s := New(Config{
		Journal: h.journal, Change: h.change, Log: slog.New(slog.DiscardHandler),
		OnAttempt: func(string, error, time.Duration) {}, OnDrop: func(string) { drops++ }, OnStop: func(string) {},
		FirstRetry: time.Second, LastRetry: 5 * time.Minute,
	})
	s.client = func() *http.Client { return &http.Client{Transport: c} }
	s.Configure([]Endpoint{{Name: "a", URL: "http://127.0.0.1/", SecretFile: secretFile(t, testSecret)}})
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { s.Run(ctx) })
	work.Go(func() { h.journal.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		work.Wait()
	})
	synctest.Wait()
	return h, func() int {
		cancel()
		work.Wait()
		return drops
	}
}

// A receiver that takes a request and does not answer is given up after attemptTimeout,
// and gets the same event again until it answers.
func TestReceiverHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hanging := 5
		c := &clocked{answer: func(r *http.Request) (*http.Response, error) {
			if hanging--; hanging < 0 {
				return accepted(), nil
			}
			<-r.Context().Done()
			return nil, context.Cause(r.Context())
		}}
		h, dropped := c.run(t)
		h.append("t", 1, 2)
		time.Sleep(5 * (attemptTimeout + time.Minute))
		if n := dropped(); n > 0 || len(c.seen) != 7 {
			t.Fatalf("%d attempts, %d events dropped", len(c.seen), n)
		}
		for i, r := range c.seen {
			if hung := i < 5; hung != (r.took == attemptTimeout) || (i < 6) != (r.id == c.seen[0].id) {
				t.Errorf("attempt %d took %v, of event %s", i, r.took, r.id)
			}
		}
	})
}

// silent is a body that never ends.
type silent struct{ ctx context.Context }

func (s silent) Read([]byte) (int, error) {
	<-s.ctx.Done()
	return 0, context.Cause(s.ctx)
}

func (silent) Close() error { return nil }

// A receiver whose answer has a body that does not come has answered: the event does not
// come again, and the next one waits for no longer than an attempt may take.
func TestBodyHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &clocked{answer: func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Body: io.ReadCloser(silent{r.Context()})}, nil
		}}
		h, _ := c.run(t)
		h.append("t", 1, 2, 3)
		time.Sleep(10 * attemptTimeout)
		got := c.delivered()
		if len(got) != 3 || got[0] == got[1] || got[1] == got[2] {
			t.Fatalf("delivered %v", got)
		}
		for i := range 2 {
			if d := c.seen[i+1].began.Sub(c.seen[i].began); d > attemptTimeout {
				t.Errorf("event %d came %v after the one before", i+1, d)
			}
		}
	})
}

// A receiver that was down for an hour gets all events of that hour, in their order, at
// most a pause after it is up, and few attempts before.
func TestReceiverIsDownForAnHour(t *testing.T) {
	const n, pause = 60, time.Minute
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("connection refused")
		up := time.Now().Add(time.Hour)
		c := &clocked{answer: func(*http.Request) (*http.Response, error) {
			if time.Now().Before(up) {
				return nil, down
			}
			return accepted(), nil
		}}
		h, dropped := c.run(t)
		var want []string
		reader, err := h.journal.Read(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		for i := range n {
			h.append("t", i)
			time.Sleep(pause)
		}
		for len(want) < n {
			batch, err := reader.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range batch {
				if e.Type != events.Created {
					t.Fatalf("%+v", e)
				}
				want = append(want, e.ID)
			}
		}
		const longest = 5 * time.Minute * 3 / 2 // a pause is varied by half
		time.Sleep(time.Until(up) + longest + time.Second)
		if n := dropped(); n > 0 {
			t.Errorf("%d events were given up", n)
		}
		if got := c.delivered(); strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%d of %d events came, or in another order", len(got), len(want))
		}
		failed := len(c.seen) - n
		if failed < 10 || failed > 40 {
			t.Errorf("%d attempts failed within the hour", failed)
		}
		t.Logf("%d failed attempts", failed)
	})
}
