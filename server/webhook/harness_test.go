package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/events"
)

// receiver is an HTTP server that checks what it gets.
type receiver struct {
	t      *testing.T
	server *httptest.Server
	secret string

	mu sync.Mutex
	// answer, when set, answers in place of 204.
	answer func(w http.ResponseWriter, r *http.Request)
	got    []message
	ids    []string
	more   chan struct{}
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{t: t, secret: testSecret, more: make(chan struct{})}
	r.server = httptest.NewServer(r)
	t.Cleanup(r.server.Close)
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	r.mu.Lock()
	answer, secret := r.answer, r.secret
	r.mu.Unlock()
	if answer != nil {
		answer(w, req)
		return
	}
	id := req.Header.Get("webhook-id")
	at, err := strconv.ParseInt(req.Header.Get("webhook-timestamp"), 10, 64)
	secrets, _ := parseSecrets([]byte(secret))
	if err != nil || time.Since(time.Unix(at, 0)).Abs() > wait || !slices.Contains(strings.Fields(req.Header.Get("webhook-signature")), sign(secrets, id, time.Unix(at, 0), body)) {
		r.t.Errorf("the signature of %s is wrong", id)
	}
	var m message
	if err := json.Unmarshal(body, &m); err != nil || req.Method != http.MethodPost || id != m.Data.EventID || strings.Contains(id, ".") {
		r.t.Errorf("%s %s: %v", req.Method, body, err)
	}
	w.WriteHeader(http.StatusNoContent)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got, r.ids = append(r.got, m), append(r.ids, id)
	close(r.more)
	r.more = make(chan struct{})
}

func (r *receiver) set(answer func(http.ResponseWriter, *http.Request)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

// await waits until done reports true for what was received.
func (r *receiver) await(what string, done func(got []message) bool) []message {
	r.t.Helper()
	late := time.After(wait)
	for {
		r.mu.Lock()
		got, more := slices.Clone(r.got), r.more
		r.mu.Unlock()
		if done(got) {
			return got
		}
		select {
		case <-more:
		case <-late:
			r.t.Fatalf("%s: %d messages", what, len(got))
		}
	}
}

func distinct(got []message) int {
	ids := make(map[string]bool)
	for _, m := range got {
		ids[m.Data.EventID] = true
	}
	return len(ids)
}

// harness is a substrate with a server that sends.
type harness struct {
	t        *testing.T
	change   events.Change
	journal  *events.Journal
	attempts chan error
	dropped  chan string
	stopped  chan string
}

func newHarness(t *testing.T) *harness {
	h := &harness{t: t, change: events.Documents(nil), attempts: make(chan error, 100_000), dropped: make(chan string, 10), stopped: make(chan string, 100)}
	h.journal = h.newJournal()
	return h
}

func (h *harness) newJournal() *events.Journal {
	return events.NewJournal(h.change, slog.New(slog.DiscardHandler), func(events.Type) {})
}

// start runs a server's sender, and the reading of its journal, until stop.
func (h *harness) start(list ...Endpoint) (s *Sender, stop func()) {
	h.t.Helper()
	if err := Check(list); err != nil {
		h.t.Fatal(err)
	}
	journal := h.newJournal()
	s = New(Config{
		Journal: journal, Change: h.change, Log: slog.New(slog.NewTextHandler(h.t.Output(), nil)),
		OnAttempt: func(_ string, err error, _ time.Duration) { h.attempts <- err },
		OnDrop:    func(name string) { h.dropped <- name }, OnStop: func(name string) { h.stopped <- name },
		FirstRetry: time.Millisecond, LastRetry: 10 * time.Millisecond,
	})
	s.Configure(list)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { s.Run(ctx) })
	work.Go(func() { journal.Run(ctx) })
	var once sync.Once
	stop = func() { once.Do(func() { cancel(); work.Wait() }) }
	h.t.Cleanup(stop)
	return s, stop
}

// begun waits until an endpoint has progress, from which on it misses nothing.
func (h *harness) begun(name string) {
	h.t.Helper()
	deadline := time.Now().Add(wait)
	for time.Now().Before(deadline) {
		found := false
		_ = h.change(h.t.Context(), documentName, func(raw []byte) ([]byte, error) {
			all := make(map[string]progress)
			found = json.Unmarshal(raw, &all) == nil && all[name].Cursor != ""
			return nil, nil
		})
		if found {
			return
		}
		<-time.After(time.Millisecond)
	}
	h.t.Fatalf("%s did not begin", name)
}

// append appends events of a tenant.
func (h *harness) append(tenant string, numbers ...int) {
	h.t.Helper()
	var list []events.Event
	for _, n := range numbers {
		list = append(list, events.New(events.Created, providers.Info{
			Name: fmt.Sprint(tenant, n), State: providers.StateActive, CreateTime: time.Unix(int64(n), 0),
			Spec: providers.Spec{Tenant: tenant, ID: strconv.Itoa(n), Labels: map[string]string{"k": "v"}},
		}, events.Requested))
	}
	if err := h.journal.Append(h.t.Context(), list); err != nil {
		h.t.Fatal(err)
	}
}

func (r *receiver) endpoint(name string) Endpoint {
	return Endpoint{Name: name, URL: r.server.URL + "/hook", SecretFile: secretFile(r.t, r.secret)}
}
