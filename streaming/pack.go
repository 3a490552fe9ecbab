package streaming

import "sync"

// Packed is the content of a sealed log in one piece: a compact form for the output of
// many ended commands.
type Packed struct {
	// Runs are the bytes, each run after its header.
	Runs []byte
	// Base is the position of the first retained byte, End that after the last.
	Base, End int64
	// Exit is where brief readers end; see Log.MarkExit.
	Exit int64
}

// Pack returns the content of a sealed log, including spilled bytes. It returns false
// if that is more than limit bytes.
func (l *Log) Pack(limit int) (Packed, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := Packed{Base: l.oldest(), End: l.end, Exit: l.exitAt}
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

// Open returns a sealed log with the packed content. Without Runs, all of it is a gap.
// Runs must not change while the log is used. The log needs no Close.
func (p Packed) Open() *Log {
	l := NewLog(Options{})
	l.spillOff, l.sealed = true, true
	l.end, l.exitAt = p.End, p.Exit
	if len(p.Runs) > 0 {
		b := &block{buf: p.Runs, used: len(p.Runs), last: -1, base: p.Base, end: p.End, disk: -1}
		// One more reference than the log's, so that Runs never become a pooled buffer.
		b.refs.Store(2)
		l.blocks = []*block{b}
	}
	return l
}

// Archive stores byte slices in an unlinked file. When the file is full, the oldest are
// overwritten. It is safe for concurrent use.
type Archive struct {
	dir  string
	size int64

	mu   sync.Mutex
	ring *spill // nil before the first Put
	off  bool   // no file can be made
}

// NewArchive returns an archive of at most size bytes with its file in dir. If dir is
// empty or not writable, Put fails.
func NewArchive(dir string, size int64) *Archive {
	return &Archive{dir: dir, size: size, off: dir == "" || size <= 0}
}

// Put stores p and returns its offset, and false if that fails.
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

// Get returns the n bytes at an offset, and false if they are overwritten.
func (a *Archive) Get(at int64, n int) ([]byte, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.holds(at) {
		return nil, false
	}
	p := make([]byte, n)
	return p, a.ring.read(p, at) == nil
}

// Holds reports whether the bytes at an offset are not overwritten.
func (a *Archive) Holds(at int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.holds(at)
}

func (a *Archive) holds(at int64) bool { return a.ring != nil && at >= a.ring.next-a.size }

// Close frees the file. Put fails afterwards.
func (a *Archive) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.off = true
	if a.ring != nil {
		a.ring.close()
		a.ring = nil
	}
}
