package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/sandgate/sandgate/server/events"
	"github.com/sandgate/sandgate/server/fault"
)

const (
	// saveInterval is how often progress is stored. After a crash the events since are
	// sent again.
	saveInterval = time.Second
	saveTimeout  = 2 * time.Second
	// maxAge is when an event that cannot be delivered is given up.
	maxAge = 24 * time.Hour
	// keepProgress is how long the progress of an endpoint that is no longer
	// configured is kept.
	keepProgress = 30 * 24 * time.Hour
	// documentName is the document with the progress of all endpoints.
	documentName = "webhooks"
)

// Config configures a Sender. All fields must be set.
type Config struct {
	Journal *events.Journal
	Change  events.Change
	Log     *slog.Logger
	// OnAttempt is called after each attempt, with the age of its event.
	OnAttempt func(endpoint string, err error, age time.Duration)
	// OnDrop is called for each event that is given up.
	OnDrop func(endpoint string)
	// OnStop is called when this server stops sending to an endpoint.
	OnStop func(endpoint string)
	// FirstRetry and LastRetry are the least and the greatest pause between two
	// attempts. A pause is varied by half.
	FirstRetry, LastRetry time.Duration
}

// Sender sends events to endpoints.
type Sender struct {
	cfg     Config
	changed chan struct{} // holds a value if the endpoints have changed
	// client returns the HTTP client of one endpoint.
	client func() *http.Client

	mu        sync.Mutex
	endpoints []Endpoint
}

// New returns a Sender without endpoints.
func New(cfg Config) *Sender {
	return &Sender{cfg: cfg, changed: make(chan struct{}, 1), client: newClient}
}

// Configure replaces the endpoints, which Check must have accepted. One that stays as
// it is goes on.
func (s *Sender) Configure(endpoints []Endpoint) {
	s.mu.Lock()
	s.endpoints = endpoints
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// errUnwanted ends a task.
var errUnwanted = errors.New("the webhook is no longer configured so, or the server stops")

// task is the sending to one endpoint.
type task struct {
	to     Endpoint
	cancel context.CancelCauseFunc
	done   chan struct{}
}

func (t task) stop() {
	t.cancel(errUnwanted)
	<-t.done
}

// Run sends until ctx ends. Of the servers of a substrate one should run it; two send
// events twice.
func (s *Sender) Run(ctx context.Context) {
	tasks := make(map[string]task)
	defer func() {
		for _, t := range tasks {
			t.cancel(errUnwanted)
		}
		for _, t := range tasks {
			<-t.done
		}
	}()
	for {
		s.mu.Lock()
		wanted := make(map[string]Endpoint)
		for _, e := range s.endpoints {
			wanted[e.Name] = e
		}
		s.mu.Unlock()
		for name, t := range tasks {
			if e, ok := wanted[name]; !ok || !e.equal(t.to) {
				t.stop()
				delete(tasks, name)
			}
		}
		for name, e := range wanted {
			if _, ok := tasks[name]; !ok {
				tasks[name] = s.start(ctx, e)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
		}
	}
}

func (s *Sender) start(ctx context.Context, e Endpoint) task {
	ctx, cancel := context.WithCancelCause(ctx)
	t := task{e, cancel, make(chan struct{})}
	go func() {
		defer close(t.done)
		defer s.cfg.OnStop(e.Name)
		for ctx.Err() == nil {
			err := fault.Catch(func() error { return s.send(ctx, e) })
			if ctx.Err() == nil {
				s.cfg.Log.WarnContext(ctx, "webhooks cannot be sent now", "webhook", e.Name, "error", err)
				s.pause(ctx, s.cfg.LastRetry)
			}
		}
	}()
	return t
}

// errSave means that progress is to be stored.
var errSave = errors.New("store the progress")

// send sends events until ctx ends, or the substrate fails.
func (s *Sender) send(ctx context.Context, to Endpoint) error {
	cursor, err := s.progress(ctx, to.Name, "")
	if err != nil {
		return err
	}
	reader, err := s.cfg.Journal.Read(ctx, cursor)
	if errors.Is(err, events.ErrCursor) {
		reader, err = s.cfg.Journal.Read(ctx, "")
	}
	if err != nil {
		return err
	}
	defer reader.Close()
	cursor = reader.Cursor()
	stored := ""
	save := func(ctx context.Context) error {
		if stored == cursor {
			return nil
		}
		_, err := s.progress(ctx, to.Name, cursor)
		if err == nil {
			stored = cursor
		}
		return err
	}
	// From here on nothing is lost.
	if err := save(ctx); err != nil {
		return err
	}
	defer func() {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTimeout)
		defer cancel()
		_ = save(late) // Without it the next sender repeats a little more.
	}()
	client := s.client()
	defer client.CloseIdleConnections()
	filter := events.Filter{Tenants: to.Tenants, Types: to.Types}
	for saved := time.Now(); ; {
		wait, stop := ctx, context.CancelFunc(func() {})
		if cursor != stored {
			wait, stop = context.WithDeadlineCause(ctx, saved.Add(saveInterval), errSave)
		}
		batch, err := reader.Next(wait)
		stop()
		if err != nil && !errors.Is(err, errSave) {
			return err
		}
		for _, e := range batch {
			if filter.Matches(e) {
				if err := s.deliver(ctx, client, to, e, save); err != nil {
					return err
				}
			}
			cursor = reader.CursorAt(e)
			if time.Since(saved) >= saveInterval {
				if err := save(ctx); err != nil {
					return err
				}
				saved = time.Now()
			}
		}
		if errors.Is(err, errSave) {
			if err := save(ctx); err != nil {
				return err
			}
			saved = time.Now()
		}
	}
}

// deliver attempts to send an event until that succeeds or the event is too old. The
// error is the end of ctx, or of save, which is called before a long wait.
func (s *Sender) deliver(ctx context.Context, client *http.Client, to Endpoint, e events.Event, save func(context.Context) error) error {
	for retry := s.cfg.FirstRetry; ; retry = min(2*retry, s.cfg.LastRetry) {
		err := attempt(ctx, client, to, e)
		if ctx.Err() != nil && err != nil {
			return context.Cause(ctx)
		}
		age := time.Since(e.Time)
		s.cfg.OnAttempt(to.Name, err, age)
		if err == nil {
			if retry > s.cfg.FirstRetry {
				s.cfg.Log.InfoContext(ctx, "a webhook can be delivered again", "webhook", to.Name)
			}
			return nil
		}
		if retry == s.cfg.FirstRetry {
			s.cfg.Log.WarnContext(ctx, "a webhook could not be delivered; it is retried", "webhook", to.Name, "error", err)
		}
		if age > maxAge {
			s.cfg.OnDrop(to.Name)
			s.cfg.Log.ErrorContext(ctx, "a webhook could not be delivered for a day and is given up",
				"webhook", to.Name, "event_id", e.ID, "error", err)
			return nil
		}
		if err := save(ctx); err != nil {
			return err
		}
		if s.pause(ctx, retry); ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

func (s *Sender) pause(ctx context.Context, about time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(about/2 + rand.N(about)):
	}
}

// progress is how far an endpoint has got.
type progress struct {
	Cursor string    `json:"cursor"`
	Stored time.Time `json:"stored"`
}

// progress stores an endpoint's cursor, unless it is empty or a later one is stored,
// and returns the stored one.
func (s *Sender) progress(ctx context.Context, name, cursor string) (stored string, err error) {
	err = s.cfg.Change(ctx, documentName, func(raw []byte) ([]byte, error) {
		all := make(map[string]progress)
		if len(raw) > 0 && json.Unmarshal(raw, &all) != nil {
			all = make(map[string]progress)
		}
		stored = all[name].Cursor
		if cursor == "" {
			return nil, nil
		}
		now := time.Now().UTC()
		for other, p := range all {
			if now.Sub(p.Stored) > keepProgress {
				delete(all, other)
			}
		}
		stored = events.Later(stored, cursor)
		all[name] = progress{stored, now}
		return json.Marshal(all)
	})
	return stored, err
}
