package streaming

import (
	"context"
	"errors"
	"io"
	"slices"
	"sort"
	"sync/atomic"
)

var (
	// ErrPosition is returned for a position that the log has not reached.
	ErrPosition = errors.New("streaming: position is beyond the end of the log")
	// ErrEmpty is returned by Try when there is nothing to read yet.
	ErrEmpty = errors.New("streaming: nothing to read yet")
)

// Chunk is a piece of one stream, or a gap.
type Chunk struct {
	Stream   Stream
	Position int64 // bytes of both streams before this chunk
	// Data is valid until Release and must not be changed.
	Data []byte
	// Gap, where not zero, says that as many bytes from Position on were
	// evicted before the reader took them. Such a chunk has no Data.
	Gap int64

	refs *atomic.Int32
	buf  []byte
}

// Release gives the bytes back. It must be called once for every chunk.
func (c *Chunk) Release() {
	if c.refs == nil {
		return
	}
	refs, buf := c.refs, c.buf
	c.refs, c.buf, c.Data = nil, nil, nil
	release(refs, buf)
}

// Reader follows a log from a position. It holds a position, not a queue: a
// slow reader costs nobody anything and is told what it missed. A Reader is
// used by one goroutine at a time.
type Reader struct {
	l       *Log
	wake    chan struct{}
	brief   bool
	waiting bool // under l.mu, as all below
	closed  bool
	pos     int64
	at      *block // where pos lies, if known
	private bool   // at is a copy from the spill file that only we hold
	off     int    // offset in at of the header of the present run
	in      int    // bytes of that run taken
}

// NewReader attaches a reader at a position. A brief reader ends where the
// command's leader ended (see Log.Settle), any other at the end of the log.
// A position before the oldest byte gives a gap first; one beyond the end is
// ErrPosition.
func (l *Log) NewReader(position int64, brief bool) (*Reader, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	if position < 0 || position > l.end {
		return nil, ErrPosition
	}
	r := &Reader{l: l, wake: make(chan struct{}, 1), brief: brief, pos: position}
	l.readers = append(l.readers, r)
	l.progress()
	return r, nil
}

// progress feeds a starved writer if the oldest block may go now.
func (l *Log) progress() {
	if l.starved && l.evictable() {
		l.feed()
	}
}

// Next waits for the next chunk of at most limit bytes. At the end it returns
// io.EOF, and when ctx ends its cause.
func (r *Reader) Next(ctx context.Context, limit int) (Chunk, error) {
	for {
		c, err := r.Try(limit)
		if !errors.Is(err, ErrEmpty) {
			return c, err
		}
		select {
		case <-r.wake:
		case <-ctx.Done():
			return Chunk{}, context.Cause(ctx)
		}
	}
}

// Waiting reports whether there is nothing to read yet; then Ready tells when
// that has changed.
func (r *Reader) Waiting() bool {
	l := r.l
	l.mu.Lock()
	defer l.mu.Unlock()
	end, over := r.bound()
	r.waiting = !r.closed && !l.closed && r.pos >= end && !over
	return r.waiting
}

// bound returns where the reader's part of the log ends, and whether that is
// final.
func (r *Reader) bound() (end int64, over bool) {
	if r.brief && r.l.settled >= 0 {
		return r.l.settled, true
	}
	return r.l.end, r.l.sealed
}

// Ready returns a channel that delivers a value when Try, having returned
// ErrEmpty, should be called again.
func (r *Reader) Ready() <-chan struct{} { return r.wake }

// Position returns the position of the next byte to take.
func (r *Reader) Position() int64 {
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	return r.pos
}

// Leads reports whether no other reader of the log has come further: it is the
// one that a writer waits for.
func (r *Reader) Leads() bool {
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	return !slices.ContainsFunc(r.l.readers, func(other *Reader) bool { return other.pos > r.pos })
}

// Close detaches the reader. A Next that waits, and every later one, returns
// ErrClosed. Close may be called from any goroutine, and more than once.
func (r *Reader) Close() {
	l := r.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.closed {
		return
	}
	r.closed = true
	r.leave()
	r.waiting = false
	select {
	case r.wake <- struct{}{}:
	default:
	}
	if i := slices.Index(l.readers, r); i >= 0 {
		l.readers = slices.Delete(l.readers, i, i+1)
	}
}

// Try is Next without waiting.
func (r *Reader) Try(limit int) (Chunk, error) {
	l := r.l
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if r.closed || l.closed {
			return Chunk{}, ErrClosed
		}
		end, over := r.bound()
		if r.pos >= end {
			if over {
				return Chunk{}, io.EOF
			}
			r.waiting = true
			return Chunk{}, ErrEmpty
		}
		if !r.here() {
			if oldest := l.oldest(); r.pos < oldest {
				c := Chunk{Position: r.pos, Gap: min(oldest, end) - r.pos}
				r.pos += c.Gap
				l.progress()
				return c, nil
			}
			if err := r.seek(); err != nil {
				return Chunk{}, err
			}
			continue
		}
		c := r.take(limit, end)
		l.progress()
		return c, nil
	}
}

// here reports whether the reader's place is known and in memory.
func (r *Reader) here() bool {
	if r.at != nil && (r.at.gone || r.at.buf == nil || r.pos >= r.at.end) {
		r.leave()
	}
	return r.at != nil
}

func (r *Reader) leave() {
	if r.at != nil && r.private {
		release(&r.at.refs, r.at.buf)
	}
	r.at, r.private, r.off, r.in = nil, false, 0, 0
}

// seek finds the block that holds pos. A block in the spill file is read
// without mu, so that no reader stalls the writer; should it have been evicted
// meanwhile, what was read is worthless and the caller looks again.
func (r *Reader) seek() error {
	l := r.l
	i := sort.Search(len(l.blocks), func(i int) bool { return l.blocks[i].end > r.pos })
	b := l.blocks[i]
	if b.buf == nil {
		file, used, disk := l.spill, b.used, b.disk
		l.mu.Unlock()
		buf := newBuffer(classFor(used))
		err := file.read(buf[:used], disk)
		l.mu.Lock()
		switch {
		case r.closed || l.closed || b.gone:
			freeBuffer(buf)
			return nil
		case err != nil:
			freeBuffer(buf)
			return err
		}
		b = &block{buf: buf, used: used, base: b.base, end: b.end}
		b.refs.Store(1)
		r.private = true
	}
	r.at, r.off, r.in = b, 0, 0
	for at := b.base; ; {
		_, n := getHeader(b.buf[r.off:])
		if r.pos < at+int64(n) {
			r.in = int(r.pos - at)
			return nil
		}
		at += int64(n)
		r.off += headerLen + n
	}
}

func classFor(n int) int {
	for i := range pools {
		if n <= pools[i].size {
			return pools[i].size
		}
	}
	return n
}

// take hands out bytes of the present run, or of the next one if that is used
// up. The caller has checked that there are some before end.
func (r *Reader) take(limit int, end int64) Chunk {
	b := r.at
	s, n := getHeader(b.buf[r.off:])
	if r.in == n {
		r.off += headerLen + n
		r.in = 0
		s, n = getHeader(b.buf[r.off:])
	}
	from := r.off + headerLen + r.in
	size := min(n-r.in, max(limit, 1))
	size = int(min(int64(size), end-r.pos))
	c := Chunk{Stream: s, Position: r.pos, Data: b.buf[from : from+size : from+size], refs: &b.refs, buf: b.buf}
	b.refs.Add(1)
	r.in += size
	r.pos += int64(size)
	return c
}
