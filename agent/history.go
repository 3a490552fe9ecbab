package agent

import (
	"hash/maphash"
	"time"

	"github.com/sandgate/sandgate/streaming"
)

// The bounds of what is kept of ended commands. Beyond a bound the oldest goes
// first: of an end, before its time; of an output, so that readers find a gap.
const (
	// keepEnded is how many ends are kept.
	keepEnded = 10_000
	// keepEndBytes is the memory that ends may take, output apart.
	keepEndBytes = 4 << 20
	// keepOutput is how much output of ended commands stays in memory. Older
	// output moves to the archive.
	keepOutput = 1 << 20
	// keepLarge is the output of one command above which it does not stay in
	// memory at all.
	keepLarge = 64 << 10
	// keepArchive is the size of the archive on disk.
	keepArchive = 32 << 20
	// keepPacked is the output of one command above which it stays in a file of
	// its own.
	keepPacked = 1 << 20
	// keepSpilled is how many ended commands may have such a file.
	keepSpilled = 32
	// keepForgotten is how many ids are remembered of commands whose ends went
	// before their time.
	keepForgotten = 1 << 14
	// retention is how long the end of a command is kept.
	retention = time.Hour
)

// history keeps ended commands, oldest first. Agent.mu guards it.
type history struct {
	byID        map[string]*past
	first, last *past
	bytes       int // of ends
	held        int // of output in memory
	unparked    *past
	spilled     []*past // those with a log of their own
	archive     *streaming.Archive

	// Ids of ends that went before their time, so that none is taken for a new
	// command: fingerprints in a ring, made when they are needed.
	seed      maphash.Seed
	forgotten map[uint64]struct{}
	ring      []uint64
	at        int
}

func newHistory(dir string) *history {
	return &history{byID: map[string]*past{}, archive: streaming.NewArchive(dir, keepArchive), seed: maphash.MakeSeed()}
}

func (h *history) add(p *past) {
	h.byID[p.id()] = p
	if h.last == nil {
		h.first = p
	} else {
		h.last.next = p
	}
	h.last = p
	h.bytes += p.cost()
	if h.unparked == nil {
		h.unparked = p
	}
	switch o := p.out; {
	case o == nil:
	case o.log != nil:
		h.spilled = append(h.spilled, p)
		h.hold(o, o.log.Overhead())
		if len(h.spilled) > keepSpilled {
			h.drop(h.spilled[0])
		}
	case len(o.packed.Runs) > keepLarge:
		h.store(p)
	default:
		h.hold(o, remainsSize+len(o.packed.Runs))
	}
	for ; h.held > keepOutput && h.unparked != nil; h.unparked = h.unparked.next {
		if o := h.unparked.out; o != nil && o.log == nil && o.size == 0 {
			h.store(h.unparked)
		}
	}
}

// remainsSize is what an output takes beside its bytes.
const remainsSize = 112

func (h *history) hold(o *remains, n int) {
	h.held += n - o.holding
	o.holding = n
}

// store moves an output to the archive, or drops it where there is none.
func (h *history) store(p *past) {
	o := p.out
	at, ok := h.archive.Put(o.packed.Runs)
	if !ok {
		h.drop(p)
		return
	}
	o.at, o.size = at, len(o.packed.Runs)
	o.packed.Runs = nil
	h.hold(o, 0)
}

// drop lets go of an output.
func (h *history) drop(p *past) {
	o := p.out
	if o == nil {
		return
	}
	h.hold(o, 0)
	if o.log != nil {
		o.log.Close()
		for i, other := range h.spilled {
			if other == p {
				h.spilled = append(h.spilled[:i:i], h.spilled[i+1:]...)
				break
			}
		}
	}
	p.out = nil
}

// trim forgets ends whose time is over, and the oldest beyond the bounds.
func (h *history) trim(now time.Time) {
	for h.first != nil {
		p := h.first
		early := now.Sub(time.Unix(0, p.ending)) < p.retention
		if early && len(h.byID) <= keepEnded && h.bytes <= keepEndBytes {
			return
		}
		if early {
			h.remember(p.id())
		}
		h.drop(p)
		if h.first = p.next; h.first == nil {
			h.last = nil
		}
		if h.unparked == p {
			h.unparked = p.next
		}
		h.bytes -= p.cost()
		delete(h.byID, p.id())
	}
}

func (h *history) remember(id string) {
	if h.forgotten == nil {
		h.forgotten, h.ring = make(map[uint64]struct{}), make([]uint64, 0, keepForgotten)
	}
	mark := maphash.String(h.seed, id)
	h.forgotten[mark] = struct{}{}
	if len(h.ring) < keepForgotten {
		h.ring = append(h.ring, mark)
		return
	}
	delete(h.forgotten, h.ring[h.at])
	h.ring[h.at] = mark
	h.at = (h.at + 1) % keepForgotten
}

// forgot reports whether a command of that id ended and was forgotten before
// its time.
func (h *history) forgot(id string) bool {
	if h.forgotten == nil {
		return false
	}
	_, ok := h.forgotten[maphash.String(h.seed, id)]
	return ok
}

// alive returns those that left processes behind.
func (h *history) alive() []*past {
	var list []*past
	for p := h.first; p != nil; p = p.next {
		if p.tree == nil {
			continue
		}
		if len(p.tree.pids()) == 0 {
			p.tree = nil
			continue
		}
		list = append(list, p)
	}
	return list
}

func (h *history) close() {
	for p := h.first; p != nil; p = p.next {
		h.drop(p)
	}
	h.byID, h.first, h.last, h.unparked = map[string]*past{}, nil, nil, nil
	h.archive.Close()
}
