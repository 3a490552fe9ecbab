package events

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/limit"
)

const (
	listPage = 500
	// warnBefore is how long before its end a sandbox is reported as expiring, if
	// that is at most a quarter of its lifetime.
	warnBefore = 5 * time.Minute
	// warnRounds is how many rounds a short lifetime has for the warning.
	warnRounds = 3
	// saveInterval is the time between two checkpoints.
	saveInterval = time.Minute
	// sightings is how many listings in a row show a change before it is reported.
	// Until then the server that made it has reported it, with its reason.
	sightings = 2
	// maxQuestions bounds the agents that a round asks at the same time.
	maxQuestions    = 32
	questionTimeout = 5 * time.Second
	// questionsTime is how long a round begins to ask agents.
	questionsTime = 10 * time.Second
)

// ObserverConfig configures an Observer. All fields must be set.
type ObserverConfig struct {
	Journal  *Journal
	Change   Change
	Provider providers.Provider
	Log      *slog.Logger
	// Interval is the time between two listings.
	Interval time.Duration
	// Left returns how much is left of a sandbox's lifetime.
	Left func(info providers.Info) time.Duration
	// Idle reports whether a sandbox has been idle for a time, by its agent.
	Idle func(ctx context.Context, info providers.Info, idle time.Duration) (bool, error)
	// OnFailure is called for each round that failed.
	OnFailure func()
}

// Observer appends to the journal what no server reported.
type Observer struct {
	cfg    ObserverConfig
	book   *book
	before map[string]string // the changes that the last listing showed, by name
	now    map[string]string // those of this one
}

// NewObserver returns an Observer. Of the servers of a substrate one should run one;
// two do no harm.
func NewObserver(cfg ObserverConfig) *Observer { return &Observer{cfg: cfg} }

// Run observes until ctx ends.
func (o *Observer) Run(ctx context.Context) {
	defer o.close()
	tick := time.NewTicker(o.cfg.Interval)
	defer tick.Stop()
	failing := false
	var saved time.Time
	for {
		err := fault.Catch(func() error {
			err := o.Round(ctx)
			if err == nil && time.Since(saved) >= saveInterval {
				saved = time.Now()
				err = o.book.save(ctx)
			}
			return err
		})
		if err != nil && ctx.Err() == nil {
			o.cfg.OnFailure()
			if !failing {
				o.cfg.Log.WarnContext(ctx, "sandboxes could not be observed for events", "error", err)
			}
			o.close() // Perhaps what was read is wrong.
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (o *Observer) close() {
	if o.book != nil {
		o.book.close()
		o.book = nil
	}
}

// Round compares the provider's sandboxes with the journal once.
func (o *Observer) Round(ctx context.Context) error {
	if o.book == nil {
		b, err := openBook(ctx, o.cfg.Journal, o.cfg.Change)
		if err != nil {
			return err
		}
		o.book, o.now = b, nil
	}
	found, err := o.list(ctx)
	if err != nil {
		return err
	}
	// What happened during the listing, too.
	if err := o.cfg.Journal.Sync(ctx); err != nil {
		return err
	}
	o.book.catchUp()
	o.before, o.now = o.now, make(map[string]string)
	var news []Event
	for _, info := range found {
		news = append(news, o.compare(info)...)
	}
	ended, err := o.missing(ctx, found)
	if err != nil {
		return err
	}
	news = append(news, ended...)
	news = append(news, o.expiring(ctx, found)...)
	if len(news) == 0 {
		return nil
	}
	slices.SortStableFunc(news, func(a, b Event) int { return strings.Compare(a.Name, b.Name) })
	if err := o.cfg.Journal.Append(ctx, news); err != nil {
		return err
	}
	o.book.catchUp()
	return nil
}

func (o *Observer) list(ctx context.Context) (map[string]providers.Info, error) {
	found := make(map[string]providers.Info)
	for q := (providers.Query{Limit: listPage}); ; {
		page, err := o.cfg.Provider.List(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, info := range page.Sandboxes {
			found[info.Name] = info
		}
		if q.Token = page.Next; q.Token == "" {
			return found, nil
		}
	}
}

// settled reports whether a sandbox is in a state that events have.
func settled(info providers.Info) bool {
	switch info.State {
	case providers.StateActive, providers.StateSuspended, providers.StateFailed:
		return true
	default:
		return false
	}
}

// again reports whether the last listing, too, showed this change of a sandbox.
func (o *Observer) again(name, change string) bool {
	o.now[name] = change
	return o.before[name] == change
}

// compare returns what the journal lacks of a sandbox that exists.
func (o *Observer) compare(info providers.Info) []Event {
	if !settled(info) {
		return nil
	}
	was, ok := o.book.names[info.Name]
	now := knownOf(info)
	change := now.Incarnation + " " + now.State.String()
	switch {
	case !ok && info.CreateTime.Before(o.cfg.Journal.Born()), ok && was.same(now):
		now.Warned = was.Warned
		o.book.set(info.Name, now)
		return nil
	case !o.again(info.Name, change):
		return nil
	case !ok:
		return created(info)
	case !was.CreateTime.Equal(now.CreateTime):
		return append([]Event{o.end(info.Name, was)}, created(info)...)
	case was.Incarnation != now.Incarnation && was.State != providers.StateSuspended:
		return []Event{New(StateChanged, info, Replaced)}
	default:
		return []Event{New(StateChanged, info, "")}
	}
}

// created returns the events of a sandbox that the journal does not have.
func created(info providers.Info) []Event {
	first := info
	first.State = providers.StateActive
	e := New(Created, first, "")
	e.Time = info.CreateTime.UTC()
	if info.State == providers.StateActive {
		return []Event{e}
	}
	return []Event{e, New(StateChanged, info, "")}
}

func (o *Observer) end(name string, k known) Event {
	reason := Reason("")
	if !k.Expire.IsZero() && !time.Now().Before(k.Expire) {
		reason = k.Lifetime
	}
	return New(Ended, k.info(name), reason)
}

// missing returns the ends of sandboxes that do not exist any more.
func (o *Observer) missing(ctx context.Context, found map[string]providers.Info) ([]Event, error) {
	var ends []Event
	for name, k := range o.book.names {
		if _, ok := found[name]; ok || !o.again(name, "gone") {
			continue
		}
		info, err := o.cfg.Provider.Get(ctx, name)
		switch {
		case err == nil && info.CreateTime.Equal(k.CreateTime):
		case err == nil, errors.Is(err, providers.ErrNotFound):
			ends = append(ends, o.end(name, k))
		default:
			return nil, err
		}
	}
	return ends, nil
}

// warnBefore returns how long before the end of a lifetime its warning is due.
//
// For an idle TTL the first quarter never is: each use of a sandbox would be followed
// by a warning. Another quarter may pass until a use is in the provider's record. So
// half of the lifetime remains, in which a round sees it if that is an interval.
func (o *Observer) warnBefore(lifetime time.Duration) time.Duration {
	return max(min(warnBefore, lifetime/4), min(warnRounds*o.cfg.Interval, lifetime/4*3))
}

// expiring returns the warnings that are due.
func (o *Observer) expiring(ctx context.Context, found map[string]providers.Info) []Event {
	var due []Event
	var mu sync.Mutex
	var work sync.WaitGroup
	warn := func(info providers.Info, reason Reason) {
		mu.Lock()
		defer mu.Unlock()
		due = append(due, New(Expiring, info, reason))
	}
	slots := limit.New(maxQuestions)
	begun := time.Now()
	for _, info := range found {
		was, ok := o.book.names[info.Name]
		end := info.ExpireTime()
		if !ok || end.IsZero() || was.Warned.Equal(end) || info.State != providers.StateActive && info.State != providers.StateSuspended {
			continue
		}
		reason, lifetime := ExpiresBy(info), info.Spec.TTL
		if reason == IdleTTL {
			lifetime = info.Spec.IdleTTL
		}
		before := o.warnBefore(lifetime)
		if left := o.cfg.Left(info); left <= 0 || left > before {
			continue
		}
		ask := reason == IdleTTL && info.State == providers.StateActive
		if !ask {
			warn(info, reason)
			continue
		}
		if slots.Acquire(ctx) != nil {
			break
		}
		if time.Since(begun) > questionsTime {
			slots.Release()
			continue // The next round asks. Agents that do not answer must not delay all events.
		}
		work.Go(func() {
			defer slots.Release()
			ctx, cancel := context.WithTimeout(ctx, questionTimeout)
			defer cancel()
			idle := true
			err := fault.Catch(func() (err error) {
				idle, err = o.cfg.Idle(ctx, info, lifetime-before)
				return err
			})
			// An agent that does not answer does not keep its sandbox for long.
			if idle || err != nil {
				warn(info, reason)
			}
		})
	}
	work.Wait()
	return due
}
