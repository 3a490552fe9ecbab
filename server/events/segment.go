package events

import (
	"encoding/json"
	"fmt"
	"time"
)

// The journal is a ring of segments, each a document of providers.Ledger. The events
// of a segment have the Seqs from Number*segmentEvents+1 on; a segment that reaches
// maxSegmentBytes before it has segmentEvents leaves a hole.
const (
	defaultSegments = 64
	segmentEvents   = 256
	// maxSegmentBytes keeps a document well below the MiB that a ConfigMap holds.
	maxSegmentBytes = 256 << 10
)

// segment is one document of the journal.
type segment struct {
	// Epoch identifies the journal: one that was deleted begins again with another.
	Epoch string `json:"epoch"`
	// Born is when the journal began. What happened before is in no journal.
	Born   time.Time `json:"born"`
	Number uint64    `json:"number"`
	// Full is true if the next event belongs to the next segment.
	Full   bool              `json:"full,omitempty"`
	Events []json.RawMessage `json:"events"`
}

// document returns the name of the document that holds a segment.
func (j *Journal) document(number uint64) string {
	return fmt.Sprintf("events-%02d", number%j.segments)
}

// decodeSegment returns nil for a document that is missing or can't be read: the
// journal then begins again.
func decodeSegment(raw []byte) *segment {
	s := &segment{}
	if len(raw) == 0 || json.Unmarshal(raw, s) != nil || s.Epoch == "" || len(s.Events) > segmentEvents {
		return nil
	}
	return s
}

// events decodes the events from the given one on. One that can't be read is left out.
func (s *segment) events(from int) []Event {
	var out []Event
	for i := from; i < len(s.Events); i++ {
		var e Event
		if json.Unmarshal(s.Events[i], &e) == nil {
			e.Seq = s.seq(i)
			out = append(out, e)
		}
	}
	return out
}

func (s *segment) seq(i int) uint64 { return s.Number*segmentEvents + uint64(i) + 1 }

// add appends an event, unless the segment is full.
func (s *segment) add(e Event, size *int) error {
	if len(s.Events) >= segmentEvents || len(s.Events) > 0 && *size >= maxSegmentBytes {
		s.Full = true
		return nil
	}
	e.Seq = s.seq(len(s.Events))
	raw, err := json.Marshal(e)
	if err != nil {
		return err
	}
	s.Events = append(s.Events, raw)
	*size += len(raw) + 1
	return nil
}
