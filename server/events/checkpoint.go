package events

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
)

const (
	// parts is the number of parts of a book that has not been split further.
	parts = 32
	// maxPartBytes keeps a stored part below the MiB that a ConfigMap holds. One of
	// more bytes is split.
	maxPartBytes = 512 << 10
	// maxSplits is how many bits of a name's hash its part leaves for splits.
	maxSplits = 27
)

// part is the part of a book that one document stores. The document of a split one
// refers to two others. Parts are never joined again.
type part struct {
	seq     uint64 // of the journal when the document was stored
	changed bool
	split   *[2]*part // nil: not split
}

// address is the place of a part. A name's hash determines the place, so each document
// is complete by itself, whatever becomes of the others.
type address struct {
	part int
	path string // "0" or "1" for each split
}

// checkpoint is a stored part.
type checkpoint struct {
	Epoch string `json:"epoch"`
	Seq   uint64 `json:"seq"`
	// Split is true if the sandboxes are in the two documents of the next path.
	Split     bool             `json:"split,omitempty"`
	Sandboxes map[string]known `json:"sandboxes"`
}

func (a address) document() string {
	name := fmt.Sprintf("events-known-%02d", a.part)
	if a.path != "" {
		name += "-" + a.path
	}
	return name
}

// next returns the address of one of the two parts of a split one.
func (a address) next(i int) address {
	a.path += string(rune('0' + i))
	return a
}

func hashOf(name string) (part int, rest uint32) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // never fails
	return int(h.Sum32() % parts), h.Sum32() / parts
}

func (b *book) partOf(name string) *part {
	i, rest := hashOf(name)
	p := b.parts[i]
	for ; p.split != nil; rest >>= 1 {
		p = p.split[rest&1]
	}
	return p
}

// load reads a part. It lowers since to what the part has of the journal.
func (b *book) load(ctx context.Context, at address, since *uint64) (*part, error) {
	var c checkpoint
	err := b.change(ctx, at.document(), func(raw []byte) ([]byte, error) {
		if c = (checkpoint{}); len(raw) == 0 || json.Unmarshal(raw, &c) != nil || c.Epoch != b.reader.epoch {
			c = checkpoint{}
		}
		return nil, nil
	})
	if err != nil {
		return nil, err
	}
	if !c.Split || len(at.path) >= maxSplits {
		maps.Copy(b.names, c.Sandboxes)
		*since = min(*since, c.Seq)
		return &part{seq: c.Seq}, nil
	}
	p := &part{seq: c.Seq, split: new([2]*part)}
	for i := range p.split {
		if p.split[i], err = b.load(ctx, at.next(i), since); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// save stores the parts that changed, and those that the journal may soon be too
// short for.
func (b *book) save(ctx context.Context) error {
	var failed []error
	sorted := make(map[*part]map[string]known)
	for name, k := range b.names {
		p := b.partOf(name)
		if sorted[p] == nil {
			sorted[p] = make(map[string]known)
		}
		sorted[p][name] = k
	}
	for i, p := range b.parts {
		failed = append(failed, b.savePart(ctx, address{part: i}, p, sorted))
	}
	return errors.Join(failed...)
}

func (b *book) savePart(ctx context.Context, at address, p *part, sorted map[*part]map[string]known) error {
	now := checkpoint{Epoch: b.reader.epoch, Seq: b.reader.seq, Split: true}
	due := p.changed || p.seq+b.reader.j.segments*segmentEvents/4 <= now.Seq
	next := p.split
	if next == nil {
		if !due {
			return nil
		}
		now.Split, now.Sandboxes = false, sorted[p]
		raw, err := json.Marshal(now)
		if err != nil {
			return err
		}
		if len(raw) <= b.maxPart || len(at.path) >= maxSplits {
			return b.store(ctx, at, p, raw)
		}
		next = divide(at, p, sorted)
		now.Split, now.Sandboxes = true, nil
	}
	err := errors.Join(b.savePart(ctx, at.next(0), next[0], sorted), b.savePart(ctx, at.next(1), next[1], sorted))
	if err != nil || !due {
		return err
	}
	// Last: until then this document has the sandboxes, and what the two have does not
	// count.
	raw, err := json.Marshal(now)
	if err != nil {
		return err
	}
	if err := b.store(ctx, at, p, raw); err != nil {
		return err
	}
	p.split = next
	return nil
}

// divide returns the two parts of a part that is too large.
func divide(at address, p *part, sorted map[*part]map[string]known) *[2]*part {
	next := [2]*part{{changed: true}, {changed: true}}
	for name, k := range sorted[p] {
		_, rest := hashOf(name)
		n := next[rest>>len(at.path)&1]
		if sorted[n] == nil {
			sorted[n] = make(map[string]known)
		}
		sorted[n][name] = k
	}
	return &next
}

func (b *book) store(ctx context.Context, at address, p *part, raw []byte) error {
	err := b.change(ctx, at.document(), func([]byte) ([]byte, error) { return slices.Clone(raw), nil })
	if err == nil {
		p.seq, p.changed = b.reader.seq, false
	}
	return err
}
