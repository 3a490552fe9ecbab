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
	// ErrEmpty is returned by Try if there is nothing to read yet.
	ErrEmpty = errors.New("streaming: nothing to read yet")
)

// Chunk is a piece of one stream, or a gap.
type Chunk struct {
	Stream   Stream
	Position int64 // bytes of both streams before this chunk
	// Data is valid until Release and must not be changed.
	Data []byte
	// Gap, if not zero, is how many bytes from Position on were evicted before the
	// reader took them. Such a chunk has no Data.
	Gap int64

	refs *atomic.Int32
	buf  []byte
}

// Release frees the bytes. It must be called once for every chunk.
func (c *Chunk) Release() {
	if c.refs == nil {
		return
	}
	refs, buf := c.refs, c.buf
	c.refs, c.buf, c.Data = nil, nil, nil
	release(refs, buf)
}

// Reader follows a log from a position. It has a position and no queue, so a slow
// reader costs no memory, and gets a gap in place of evicted bytes. Only one goroutine
// at a time may use it, except for Close.
type Reader struct {
	l       *Log
	wake    chan struct{}
	brief   bool
	waiting bool // this and the fields below require l.mu
	closed  bool
	pos     int64
	at      *block // the block of pos, if known
	private bool   // at is the reader's own copy from the spill file
	off     int    // offset in at of the header of the current run
	in      int    // bytes of that run taken
}

// NewReader attaches a reader at a position. A brief reader ends at the end of the
// leader's output (see MarkExit), others at the end of the log. A position before the
// oldest byte yields a gap first. One beyond the end is ErrPosition.
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

// progress notifies a starved writer if the oldest block may be evicted now.
func (l *Log) progress() {
	if l.starved && l.evictable() {
		l.notifyWriter()
	}
}

// Next waits for the next chunk of at most limit bytes. It returns io.EOF at the end,
// and the cause of ctx when ctx is done.
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

// Waiting reports whether there is nothing to read yet. Then Ready delivers a value
// when there is.
func (r *Reader) Waiting() bool {
	l := r.l
	l.mu.Lock()
	defer l.mu.Unlock()
	end, final := r.bound()
	r.waiting = !r.closed && !l.closed && r.pos >= end && !final
	return r.waiting
}

// bound returns where the reader's part of the log ends, and whether that is
// final.
func (r *Reader) bound() (end int64, final bool) {
	if r.brief && r.l.exitAt >= 0 {
		return r.l.exitAt, true
	}
	return r.l.end, r.l.sealed
}

// Ready returns a channel that delivers a value when Try should be called again after
// ErrEmpty.
func (r *Reader) Ready() <-chan struct{} { return r.wake }

// Position returns the position of the next byte to take.
func (r *Reader) Position() int64 {
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	return r.pos
}

// Leads reports whether no other reader of the log is further: a blocked writer waits
// for this one.
func (r *Reader) Leads() bool {
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	return !slices.ContainsFunc(r.l.readers, func(other *Reader) bool { return other.pos > r.pos })
}

// Close detaches the reader. A waiting Next and every later one returns ErrClosed.
// Close may be called from any goroutine, and more than once.
func (r *Reader) Close() {
	l := r.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.closed {
		return
	}
	r.closed = true
	r.unlocate()
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
		end, final := r.bound()
		if r.pos >= end {
			if final {
				return Chunk{}, io.EOF
			}
			r.waiting = true
			return Chunk{}, ErrEmpty
		}
		if !r.located() {
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

// located reports whether the block of pos is known and in memory.
func (r *Reader) located() bool {
	if r.at != nil && (r.at.freed || r.at.buf == nil || r.pos >= r.at.end) {
		r.unlocate()
	}
	return r.at != nil
}

func (r *Reader) unlocate() {
	if r.at != nil && r.private {
		release(&r.at.refs, r.at.buf)
	}
	r.at, r.private, r.off, r.in = nil, false, 0, 0
}

// seek finds the block of pos. It reads a block from the spill file without mu, so
// that readers don't block the writer. If the block was evicted meanwhile, seek
// discards it and the caller retries.
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
		case r.closed || l.closed || b.freed:
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

// take returns bytes of the current run, or of the next one if the current one is used
// up. The caller has checked that pos is before end.
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
