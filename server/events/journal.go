package events

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/limit"
)

const (
	// maxQueue bounds the events that wait to be written. The Observer finds what is
	// dropped beyond it, without its reason.
	maxQueue = 8 * segmentEvents
	// flushPause lets one write carry several events.
	flushPause = 200 * time.Millisecond
	// retryPause follows a write that failed.
	retryPause = time.Second
	// pollInterval is how often a server with readers looks for events of others.
	pollInterval = time.Second
	// flushTimeout bounds a write of the queue.
	flushTimeout = 20 * time.Second
)

// Change changes a shared document, as providers.Ledger's ChangeLedger does.
type Change func(ctx context.Context, name string, change func([]byte) ([]byte, error)) error

// Documents returns the shared documents of a provider. Those of a provider
// without a ledger live in memory.
func Documents(p providers.Provider) Change {
	if l, ok := p.(providers.Ledger); ok {
		return l.ChangeLedger
	}
	var mu sync.Mutex
	documents := make(map[string][]byte)
	return func(_ context.Context, name string, change func([]byte) ([]byte, error)) error {
		mu.Lock()
		defer mu.Unlock()
		now, err := change(documents[name])
		if err == nil && now != nil {
			documents[name] = now
		}
		return err
	}
}

// Journal is the list of the last events, which all servers of a substrate share:
// at least the last 16 000, or 16 MiB of them.
type Journal struct {
	change   Change
	segments uint64
	log      *slog.Logger
	// onEvent is called for each event that this server has appended.
	onEvent func(Type)
	// working is held while the documents are read or changed.
	working limit.Slots
	queued  chan struct{} // holds a value if the queue may not be empty

	mu    sync.Mutex
	queue []Event
	// epoch is empty until the journal was read.
	epoch string
	born  time.Time
	// tail is the number of the segment that the next event belongs to, of which
	// read events are known.
	tail uint64
	read int
	// first is the smallest Seq from which on all events are known, which events has
	// in order. ids counts their IDs.
	first   uint64
	events  []Event
	ids     map[string]int
	changed chan struct{} // closed when there is more
	readers int
}

// NewJournal returns a Journal that has read nothing yet.
func NewJournal(change Change, log *slog.Logger, onEvent func(Type)) *Journal {
	return &Journal{
		change: change, segments: defaultSegments, log: log, onEvent: onEvent, working: limit.New(1), queued: make(chan struct{}, 1),
		ids: make(map[string]int), changed: make(chan struct{}),
	}
}

// Note appends an event soon. It never waits.
func (j *Journal) Note(e Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.queue) >= maxQueue {
		return
	}
	j.queue = append(j.queue, e)
	select {
	case j.queued <- struct{}{}:
	default:
	}
}

// Run writes noted events, and reads those of other servers while there are readers,
// until ctx ends. Flush writes the rest.
func (j *Journal) Run(ctx context.Context) {
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	failing := false
	for {
		var err error
		pause := flushPause
		select {
		case <-ctx.Done():
			return
		case <-j.queued:
			err = j.Flush(ctx)
		case <-poll.C:
			if pause = 0; j.hasReaders() {
				err = j.Sync(ctx)
			}
		}
		if err != nil && ctx.Err() == nil {
			pause = retryPause
			if !failing {
				j.log.WarnContext(ctx, "the journal of events cannot be read or written", "error", err)
			}
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

func (j *Journal) hasReaders() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.readers > 0
}

// Flush writes noted events. After an error they stay noted.
func (j *Journal) Flush(ctx context.Context) error {
	j.mu.Lock()
	batch := j.queue
	j.queue = nil
	j.mu.Unlock()
	if len(batch) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	err := j.Append(ctx, batch)
	if err != nil {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.queue = append(batch, j.queue...)
		j.queue = j.queue[:min(len(j.queue), maxQueue)]
		select {
		case j.queued <- struct{}{}:
		default:
		}
	}
	return err
}

// Append writes events. It leaves out those that the journal has, and those of a
// sandbox whose end it has. After an error some may have been written.
func (j *Journal) Append(ctx context.Context, batch []Event) error {
	if err := j.working.Acquire(ctx); err != nil {
		return err
	}
	defer j.working.Release()
	for part := range slices.Chunk(batch, segmentEvents) {
		for {
			if err := j.sync(ctx); err != nil {
				return err
			}
			if part = j.news(part); len(part) == 0 {
				break
			}
			if err := j.write(ctx, part); err != nil {
				return err
			}
		}
	}
	return nil
}

// news returns the events that the journal lacks.
func (j *Journal) news(batch []Event) []Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []Event
	own := make(map[string]bool)
	for _, e := range batch {
		end := e.endID()
		if j.ids[e.ID] > 0 || own[e.ID] || j.ids[end] > 0 || own[end] {
			continue
		}
		own[e.ID] = true
		out = append(out, e)
	}
	return out
}

// write appends what fits to the last segment, if it is still as it was read.
func (j *Journal) write(ctx context.Context, batch []Event) error {
	j.mu.Lock()
	tail, read, epoch, born := j.tail, j.read, j.epoch, j.born
	j.mu.Unlock()
	added := 0
	err := j.change(ctx, j.document(tail), func(raw []byte) ([]byte, error) {
		s, size := decodeSegment(raw), len(raw)
		if read == 0 && (s == nil || s.Number < tail) {
			s, size = &segment{Epoch: epoch, Born: born, Number: tail}, 0
		}
		if added = 0; s == nil || s.Epoch != epoch || s.Number != tail || len(s.Events) != read || s.Full {
			return nil, nil // Another server has changed it: read it first.
		}
		for _, e := range batch {
			if err := s.add(e, &size); err != nil {
				return nil, err
			}
			if s.Full {
				break
			}
			added++
		}
		return json.Marshal(s)
	})
	if err == nil {
		for _, e := range batch[:added] {
			j.onEvent(e.Type)
		}
	}
	return err
}

// Sync reads what other servers have appended.
func (j *Journal) Sync(ctx context.Context) error {
	if err := j.working.Acquire(ctx); err != nil {
		return err
	}
	defer j.working.Release()
	return j.sync(ctx)
}

// sync needs j.working.
func (j *Journal) sync(ctx context.Context) error {
	for {
		j.mu.Lock()
		tail, read, epoch := j.tail, j.read, j.epoch
		j.mu.Unlock()
		if epoch == "" {
			return j.load(ctx)
		}
		s, err := j.get(ctx, tail)
		switch {
		case err != nil:
			return err
		case s != nil && s.Epoch == epoch && s.Number == tail && len(s.Events) >= read:
			j.learn(s, read)
			if !s.Full {
				return nil
			}
		case read == 0 && (s == nil || s.Epoch == epoch && s.Number < tail):
			return nil
		default:
			// It was deleted, or this server has not looked for longer than the ring
			// goes round.
			return j.load(ctx)
		}
	}
}

func (j *Journal) get(ctx context.Context, number uint64) (s *segment, err error) {
	err = j.change(ctx, j.document(number), func(raw []byte) ([]byte, error) {
		s = decodeSegment(raw)
		return nil, nil
	})
	return s, err
}

// learn takes over the events of the last segment from the given one on.
func (j *Journal) learn(s *segment, from int) {
	news := s.events(from)
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range news {
		j.events = append(j.events, e)
		j.ids[e.ID]++
	}
	if j.tail, j.read = s.Number, len(s.Events); s.Full {
		j.tail, j.read = s.Number+1, 0
	}
	if j.tail >= j.segments {
		j.first = max(j.first, (j.tail+1-j.segments)*segmentEvents+1)
	}
	drop := sort.Search(len(j.events), func(i int) bool { return j.events[i].Seq >= j.first })
	for _, e := range j.events[:drop] {
		if j.ids[e.ID]--; j.ids[e.ID] == 0 {
			delete(j.ids, e.ID)
		}
	}
	if drop > 0 {
		j.events = slices.Clone(j.events[drop:])
	}
	if len(news) > 0 {
		j.wake()
	}
}

// load reads the whole journal, or begins one. It needs j.working.
func (j *Journal) load(ctx context.Context) error {
	all := make(map[uint64]*segment)
	var last *segment
	for i := range j.segments {
		s, err := j.get(ctx, i)
		if err != nil {
			return err
		}
		if s == nil {
			continue
		}
		if last == nil || s.Born.After(last.Born) || s.Epoch == last.Epoch && s.Number > last.Number {
			last = s
		}
		all[i] = s
	}
	if last == nil {
		s := &segment{Epoch: rand.Text(), Born: time.Now().UTC()}
		err := j.change(ctx, j.document(0), func(raw []byte) ([]byte, error) {
			if now := decodeSegment(raw); now != nil {
				s = now // of another server
				return nil, nil
			}
			return json.Marshal(s)
		})
		if err != nil {
			return err
		}
		last, all[0] = s, s
	}
	first := last.Number
	for first > 0 && last.Number-first < j.segments-1 {
		before := all[(first-1)%j.segments]
		if before == nil || before.Epoch != last.Epoch || before.Number != first-1 {
			break
		}
		first--
	}
	j.mu.Lock()
	j.epoch, j.born, j.events, j.ids = last.Epoch, last.Born, nil, make(map[string]int)
	j.first = first*segmentEvents + 1
	j.mu.Unlock()
	for n := first; n <= last.Number; n++ {
		j.learn(all[n%j.segments], 0)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.wake() // Readers of a former journal get a Resync.
	return nil
}

// wake wakes the readers. It needs j.mu.
func (j *Journal) wake() {
	close(j.changed)
	j.changed = make(chan struct{})
}

// Born returns when the journal began. It must have been read.
func (j *Journal) Born() time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.born
}

// end returns the Seq after which the next event comes. It needs j.mu.
func (j *Journal) end() uint64 { return j.tail*segmentEvents + uint64(j.read) }

// String identifies the journal's state in tests and logs.
func (j *Journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return fmt.Sprintf("%s %d-%d", j.epoch, j.first, j.end())
}
