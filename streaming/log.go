package streaming

import (
	"errors"
	"sync"
)

// Stream is one of a command's output streams.
type Stream uint8

// The streams of a command. A merged pipe and a terminal are one stream.
const (
	Stdout   Stream = 1
	Stderr   Stream = 2
	Terminal Stream = 3
)

// Policy is what happens when a log is full.
type Policy uint8

const (
	// Block blocks the writer, as a pipe does, until the fastest attached reader has
	// taken the oldest bytes. Without a reader it blocks until one attaches, the
	// policy changes, or the log is closed.
	Block Policy = iota
	// Evict drops the oldest bytes.
	Evict
)

var (
	// ErrFull is returned by Fill if the policy is Block and the log is full.
	// Options.Room is called once there may be room again.
	ErrFull = errors.New("streaming: log is full")
	// ErrClosed is returned once the log or the reader is closed.
	ErrClosed = errors.New("streaming: closed")
	// ErrSealed is returned to a writer after Seal.
	ErrSealed = errors.New("streaming: log is sealed")
)

// The defaults of Options.
const (
	DefaultMemory   = 1 << 20
	DefaultCapacity = 64 << 20
)

// Options configure a Log. The zero value keeps DefaultMemory bytes in memory
// and spills nothing.
type Options struct {
	// Memory is how many bytes stay in memory. 0: DefaultMemory.
	Memory int
	// Capacity is how many bytes are retained in memory and the spill file
	// together, including headers. 0: DefaultCapacity. Without a spill file it is
	// Memory.
	Capacity int64
	// Reserve is how many bytes behind the fastest reader are not evicted under
	// Block, because they may be in flight when a connection breaks. 0: a quarter of
	// the retained bytes. Negative: none.
	Reserve int64
	// Dir is where the spill file is made. Empty or not writable: no spill file.
	Dir string
	// Policy is what happens when the log is full.
	Policy Policy
	// Max caps the stored bytes of both streams together. Bytes beyond it are counted
	// and dropped, and never block the writer. 0: no cap. Negative: nothing is
	// stored.
	Max int64
	// Budget, if set, bounds the memory of many logs together.
	Budget *Budget
	// Room, if set, is called after Fill returned ErrFull, once a retry may succeed.
	// It must not block or call into the log.
	Room func()
}

// Count is the size of one stream.
type Count struct {
	Bytes     int64 // bytes that the command wrote, including dropped ones
	Truncated bool  // some of them were dropped by Options.Max
}

// Log is the ordered output log of one command. It is safe for concurrent use
// by any number of writers and readers.
type Log struct {
	o        Options
	maxBlock int

	wmu     sync.Mutex // held by the writer: order, spilling
	scratch []byte     // under wmu: where dropped bytes are read to
	grow    int        // under wmu: size of the next block

	mu       sync.Mutex
	blocks   []*block // oldest first; only the last one grows
	inMemory int      // index in blocks of the oldest one in memory
	memory   int      // bytes of buffers held
	disk     int64    // bytes in the spill file
	spill    *spill
	spillOff bool // no spill file can be made
	end      int64
	counts   [4]Count
	policy   Policy
	sealed   bool
	exitAt   int64 // position of MarkExit, -1 before
	closed   bool
	readers  []*Reader
	starved  bool // Fill returned ErrFull
}

// NewLog returns an empty log.
func NewLog(o Options) *Log {
	if o.Memory <= 0 {
		o.Memory = DefaultMemory
	}
	if o.Capacity <= 0 {
		o.Capacity = DefaultCapacity
	}
	if o.Capacity < int64(o.Memory) {
		o.Memory = int(o.Capacity)
	}
	l := &Log{o: o, policy: o.Policy, exitAt: -1, spillOff: o.Dir == ""}
	l.maxBlock = min(classLarge, max(o.Memory/4, 16))
	l.grow = min(classSmall, l.maxBlock)
	return l
}

// Fill calls read once with free space of the log and publishes the bytes that read
// put there, so that bytes from a pipe reach every reader without a copy. It never
// blocks: if the log is full, it returns ErrFull without calling read. It returns the
// results of read; an error of read does not discard its bytes.
func (l *Log) Fill(s Stream, read func([]byte) (int, error)) (int, error) {
	if s < Stdout || s > Terminal {
		panic("streaming: unknown stream")
	}
	l.wmu.Lock()
	defer l.wmu.Unlock()
	space, err := l.reserve(s)
	if err != nil {
		return 0, err
	}
	if space == nil {
		return l.drop(s, read)
	}
	n, err := read(space)
	if n > 0 {
		if n == len(space) {
			l.grow = nextClass(l.grow, l.maxBlock)
		}
		l.publish(s, n)
	}
	return n, err
}

func nextClass(size, limit int) int {
	switch {
	case size < classMedium:
		return min(classMedium, limit)
	default:
		return min(classLarge, limit)
	}
}

// drop reads bytes beyond Options.Max.
func (l *Log) drop(s Stream, read func([]byte) (int, error)) (int, error) {
	if l.scratch == nil {
		l.scratch = make([]byte, min(classMedium, l.maxBlock))
	}
	n, err := read(l.scratch)
	if n > 0 {
		l.mu.Lock()
		l.counts[s].Bytes += int64(n)
		l.counts[s].Truncated = true
		l.mu.Unlock()
	}
	return n, err
}

// reserve returns space for the next bytes of s, nil if Options.Max is reached.
func (l *Log) reserve(s Stream) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch {
		case l.closed:
			return nil, ErrClosed
		case l.sealed:
			return nil, ErrSealed
		case l.o.Max != 0 && l.end >= l.o.Max:
			return nil, nil
		}
		if space := l.tail(s); space != nil {
			return space, nil
		}
		ok, err := l.makeRoom(l.grow)
		if err != nil {
			return nil, err
		}
		if ok {
			l.blocks = append(l.blocks, newBlock(l.grow, l.end))
			l.memory += l.grow
			l.o.Budget.add(l.grow)
		}
	}
}

// tail returns the free part of the last block, nil if a new block is needed.
func (l *Log) tail(s Stream) []byte {
	if len(l.blocks) == 0 {
		return nil
	}
	b := l.blocks[len(l.blocks)-1]
	if b.buf == nil {
		return nil
	}
	at := b.used
	if b.last < 0 || streamAt(b.buf, b.last) != s {
		at += headerLen
	}
	// A nearly full block would cost a read and a message for a few bytes.
	if len(b.buf)-at <= len(b.buf)/8 {
		return nil
	}
	return b.buf[at:]
}

func streamAt(buf []byte, off int) Stream {
	s, _ := getHeader(buf[off:])
	return s
}

// publish makes the n bytes after the last run part of the log.
func (l *Log) publish(s Stream, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[s].Bytes += int64(n)
	if l.o.Max > 0 {
		if kept := l.o.Max - l.end; int64(n) > kept {
			l.counts[s].Truncated = true
			n = int(kept)
		}
	}
	if l.closed {
		return
	}
	b := l.blocks[len(l.blocks)-1]
	if b.last >= 0 && streamAt(b.buf, b.last) == s {
		_, old := getHeader(b.buf[b.last:])
		putHeader(b.buf[b.last:], s, old+n)
	} else {
		putHeader(b.buf[b.used:], s, n)
		b.last = b.used
		b.used += headerLen
	}
	b.used += n
	b.end += int64(n)
	l.end = b.end
	l.wake()
}

// wake wakes every waiting reader. It requires mu.
func (l *Log) wake() {
	for _, r := range l.readers {
		if r.waiting {
			r.waiting = false
			select {
			case r.wake <- struct{}{}:
			default:
			}
		}
	}
}

// SetPolicy changes the policy, and calls Options.Room if the writer waits for room.
func (l *Log) SetPolicy(p Policy) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.policy = p
	l.notifyWriter()
}

// MarkExit marks the current position as the end of the leader's output. Brief
// readers end there. Only the first call counts.
func (l *Log) MarkExit() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.exitAt < 0 {
		l.exitAt = l.end
		l.wake()
	}
}

// Seal ends the log: no bytes are added, and readers at its end get io.EOF. The log
// stays readable until Close.
func (l *Log) Seal() {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sealed || l.closed {
		return
	}
	l.sealed = true
	l.scratch = nil
	l.shrink()
	l.wake()
	l.notifyWriter()
}

// shrink replaces a barely used last block by a smaller one, so that a short command
// costs no more than its output.
func (l *Log) shrink() {
	if len(l.blocks) == 0 {
		return
	}
	b := l.blocks[len(l.blocks)-1]
	if b.buf == nil || b.used > len(b.buf)/2 {
		return
	}
	small := &block{buf: make([]byte, b.used), used: b.used, last: b.last, base: b.base, end: b.end, disk: -1}
	small.refs.Store(1)
	copy(small.buf, b.buf[:b.used])
	l.memory += len(small.buf) - len(b.buf)
	l.o.Budget.add(len(small.buf) - len(b.buf))
	l.blocks[len(l.blocks)-1] = small
	for _, r := range l.readers {
		if r.at == b {
			r.at = small
		}
	}
	release(&b.refs, b.buf)
}

// Counts returns the size of one stream.
func (l *Log) Counts(s Stream) Count {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts[s]
}

// Range returns the position of the oldest retained byte, and that after the newest.
func (l *Log) Range() (oldest, end int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.oldest(), l.end
}

func (l *Log) oldest() int64 {
	if len(l.blocks) == 0 {
		return l.end
	}
	return l.blocks[0].base
}

// Close frees everything. Readers and writers get ErrClosed. Chunks stay valid until
// they are released.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	for _, b := range l.blocks {
		b.freed = true
		if b.buf != nil {
			release(&b.refs, b.buf)
		}
	}
	l.blocks = nil
	l.o.Budget.add(-l.memory)
	l.memory = 0
	if l.spill != nil {
		l.spill.close()
	}
	l.wake()
	l.notifyWriter()
}
