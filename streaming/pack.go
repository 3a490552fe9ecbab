package streaming

import "sync"

// Packed is what a sealed log holds, in one piece and without what a log needs
// to grow: the form in which the output of many ended commands is kept.
type Packed struct {
	// Runs are the bytes, each run behind its header.
	Runs []byte
	// Base is the position of the first byte that is still there, End the one
	// after the last.
	Base, End int64
	// Settled is where brief readers end; see Log.Settle.
	Settled int64
}

// Pack returns what a sealed log holds, also what it spilled. It reports false,
// and the log must be kept itself, when that is more than limit bytes.
func (l *Log) Pack(limit int) (Packed, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := Packed{Base: l.oldest(), End: l.end, Settled: l.settled}
	n := 0
	for _, b := range l.blocks {
		n += b.used
	}
	if !l.sealed || l.closed || n > limit {
		return Packed{}, false
	}
	if p.Base == p.End {
		return p, true
	}
	p.Runs = make([]byte, 0, n)
	for _, b := range l.blocks {
		if b.buf != nil {
			p.Runs = append(p.Runs, b.buf[:b.used]...)
			continue
		}
		at := len(p.Runs)
		p.Runs = p.Runs[:at+b.used]
		if l.spill.read(p.Runs[at:], b.disk) != nil {
			return Packed{}, false
		}
	}
	return p, true
}

// Open returns a sealed log of what was packed, for readers. Without Runs, all
// of it is a gap. The log holds no memory but Runs, which must not change; it
// needs no Close.
func (p Packed) Open() *Log {
	l := NewLog(Options{})
	l.spillOff, l.sealed = true, true
	l.end, l.settled = p.End, p.Settled
	if len(p.Runs) > 0 {
		b := &block{buf: p.Runs, used: len(p.Runs), last: -1, base: p.Base, end: p.End, disk: -1}
		// One reference more than the log's: the bytes are not a buffer of ours.
		b.refs.Store(2)
		l.blocks = []*block{b}
	}
	return l
}

// Archive keeps pieces of bytes in a file that nobody else sees. When it is
// full the oldest are overwritten. It is safe for concurrent use.
type Archive struct {
	dir  string
	size int64

	mu   sync.Mutex
	ring *spill // nil before the first piece
	off  bool   // there is no file and there will be none
}

// NewArchive returns an archive of at most size bytes with its file in dir.
// Empty, or not writable, means that nothing can be kept.
func NewArchive(dir string, size int64) *Archive {
	return &Archive{dir: dir, size: size, off: dir == "" || size <= 0}
}

// Put keeps p and returns where, false when it cannot be kept.
func (a *Archive) Put(p []byte) (int64, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.off || int64(len(p)) > a.size {
		return 0, false
	}
	if a.ring == nil {
		ring, err := openSpill(a.dir, a.size)
		if err != nil {
			a.off = true
			return 0, false
		}
		a.ring = ring
	}
	at, err := a.ring.write(p)
	return at, err == nil
}

// Get returns n bytes that were kept, false when they are overwritten.
func (a *Archive) Get(at int64, n int) ([]byte, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.holds(at) {
		return nil, false
	}
	p := make([]byte, n)
	return p, a.ring.read(p, at) == nil
}

// Holds reports whether a piece is still there.
func (a *Archive) Holds(at int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.holds(at)
}

func (a *Archive) holds(at int64) bool { return a.ring != nil && at >= a.ring.next-a.size }

// Close frees the file. Nothing can be kept afterwards.
func (a *Archive) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.off = true
	if a.ring != nil {
		a.ring.close()
		a.ring = nil
	}
}
