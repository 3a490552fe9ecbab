package events

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"time"
)

// maxRead is how many events Next returns at once.
const maxRead = 100

// ErrCursor means that a cursor is malformed.
var ErrCursor = errors.New("the cursor is malformed")

// Reader reads the journal from a position on. It holds no events of its own, so a
// slow one costs no memory and delays no other: it misses events once the journal
// has dropped them, and then gets a Resync.
//
// A Reader is for one goroutine. It must be closed.
type Reader struct {
	j *Journal
	position
}

// position is a place in a journal: after the event Seq.
type position struct {
	epoch string
	seq   uint64
}

// cursorVersion begins a cursor, so that a later format can be told apart.
const cursorVersion = "1"

func (p position) String() string {
	return cursorVersion + "." + p.epoch + "." + strconv.FormatUint(p.seq, 36)
}

// Later returns the later one of two cursors of the same journal, and the second one
// of cursors that cannot be compared.
func Later(a, b string) string {
	p, failed := parseCursor(a)
	q, err := parseCursor(b)
	if failed == nil && err == nil && p.epoch == q.epoch && p.seq > q.seq {
		return a
	}
	return b
}

// maxEpoch bounds a cursor's epoch.
const maxEpoch = 64

func parseCursor(cursor string) (position, error) {
	parts := strings.Split(cursor, ".")
	if len(parts) != 3 || parts[0] != cursorVersion || parts[1] == "" || len(parts[1]) > maxEpoch {
		return position{}, ErrCursor
	}
	seq, err := strconv.ParseUint(parts[2], 36, 64)
	p := position{parts[1], seq}
	if err != nil || p.String() != cursor {
		return position{}, ErrCursor
	}
	return p, nil
}

// Read returns a Reader that begins after a cursor, or at the journal's present end
// if the cursor is empty. The error wraps ErrCursor if it is malformed.
func (j *Journal) Read(ctx context.Context, cursor string) (*Reader, error) {
	var from position
	if cursor != "" {
		var err error
		if from, err = parseCursor(cursor); err != nil {
			return nil, err
		}
	}
	// From here on Run keeps the journal in memory up to date.
	j.mu.Lock()
	j.readers++
	j.mu.Unlock()
	if err := j.Sync(ctx); err != nil {
		j.leave()
		return nil, fmt.Errorf("the journal of events: %w", err)
	}
	if cursor == "" {
		j.mu.Lock()
		from = position{j.epoch, j.end()}
		j.mu.Unlock()
	}
	return &Reader{j, from}, nil
}

func (j *Journal) leave() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.readers--
}

// Close ends the Reader.
func (r *Reader) Close() { r.j.leave() }

// Cursor returns the Reader's position, after what Next returned last.
func (r *Reader) Cursor() string { return r.String() }

// CursorAt returns the position after one of the events that Next returned.
func (r *Reader) CursorAt(e Event) string { return position{r.epoch, e.Seq}.String() }

// Next waits for events until ctx ends, and returns its cause then. If events were
// lost it returns a single Resync, and continues at the journal's end.
func (r *Reader) Next(ctx context.Context) ([]Event, error) {
	for {
		found, more := r.poll()
		if len(found) > 0 {
			return found, nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// poll returns the next events, or else a channel that is closed when there may be
// some.
func (r *Reader) poll() ([]Event, <-chan struct{}) {
	j := r.j
	j.mu.Lock()
	defer j.mu.Unlock()
	if r.epoch != j.epoch || r.seq > j.end() || r.seq+1 < j.first {
		lost := Event{Type: Resync, Time: time.Now().UTC(), Seq: j.end(), Message: "events are missing; list the sandboxes"}
		sum := sha256.Sum256([]byte(r.Cursor()))
		lost.ID = "ev-" + hex.EncodeToString(sum[:12])
		r.position = position{j.epoch, j.end()}
		return []Event{lost}, nil
	}
	begin := sort.Search(len(j.events), func(i int) bool { return j.events[i].Seq > r.seq })
	found := j.events[begin:min(begin+maxRead, len(j.events))]
	if len(found) == 0 {
		// A segment that is full leaves a hole, which is no loss.
		r.seq = j.end()
		return nil, j.changed
	}
	r.seq = found[len(found)-1].Seq
	return append([]Event(nil), found...), nil
}
