package streaming

// makeRoom makes place in memory for a block of size bytes: it moves the
// oldest bytes in memory to the spill file and, when that is full, evicts the
// oldest of all. It reports false when it had to let go of mu, so the caller
// must look again. It needs wmu and mu.
func (l *Log) makeRoom(size int) (bool, error) {
	limit := l.o.Memory
	if l.o.Budget.exhausted() {
		limit = size
	}
	for l.memory+size > limit && l.inMemory < len(l.blocks) {
		b := l.blocks[l.inMemory]
		if !l.spillOff && l.disk+int64(b.used) <= l.diskSize() {
			l.spillOut(b)
			return false, nil
		}
		if !l.evictable() {
			l.starved = true
			return false, ErrFull
		}
		l.evict()
	}
	return true, nil
}

func (l *Log) diskSize() int64 { return l.o.Capacity - int64(l.o.Memory) }

// spillOut moves the oldest block in memory to the spill file. The bytes are
// written without mu: a block that is not the last one never changes, and the
// last one only under wmu.
func (l *Log) spillOut(b *block) {
	if l.spill == nil {
		if l.diskSize() < int64(l.maxBlock) {
			l.spillOff = true
			return
		}
		s, err := openSpill(l.o.Dir, l.diskSize())
		if err != nil {
			l.spillOff = true
			return
		}
		l.spill = s
	}
	buf := b.buf
	b.refs.Add(1)
	l.mu.Unlock()
	off, err := l.spill.write(buf[:b.used])
	l.mu.Lock()
	defer release(&b.refs, buf)
	if l.closed {
		return
	}
	if err != nil {
		// A full disk: what is spilled stays readable, the log goes on with
		// what memory it has.
		l.spillOff = true
		return
	}
	b.disk, b.buf = off, nil
	l.disk += int64(b.used)
	l.inMemory++
	l.free(b, buf)
}

func (l *Log) free(b *block, buf []byte) {
	l.memory -= len(buf)
	l.o.Budget.add(-len(buf))
	release(&b.refs, buf)
}

// evictable reports whether the oldest block may go.
func (l *Log) evictable() bool {
	if l.policy == Evict || len(l.blocks) == 0 {
		return true
	}
	fastest := int64(-1)
	for _, r := range l.readers {
		fastest = max(fastest, r.pos)
	}
	if fastest >= l.end {
		return true
	}
	return l.blocks[0].end <= fastest-l.reserved()
}

// reserved is what stays protected behind the fastest reader: never more than
// a quarter of what is retained, or the writer would wait for ever.
func (l *Log) reserved() int64 {
	if l.o.Reserve < 0 {
		return 0
	}
	quarter := (l.end - l.blocks[0].base) / 4
	if l.o.Reserve == 0 {
		return quarter
	}
	return min(l.o.Reserve, quarter)
}

func (l *Log) evict() {
	b := l.blocks[0]
	l.blocks[0] = nil
	l.blocks = l.blocks[1:]
	b.gone = true
	if b.buf != nil {
		l.free(b, b.buf)
		return
	}
	l.disk -= int64(b.used)
	l.inMemory--
}

// feed tells a starved writer to try again. It needs mu.
func (l *Log) feed() {
	if !l.starved {
		return
	}
	l.starved = false
	if l.room != nil {
		close(l.room)
		l.room = nil
	}
	if l.o.Room != nil {
		l.o.Room()
	}
}

// roomy returns a channel that is closed when a starved writer should try
// again.
func (l *Log) roomy() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.room == nil {
		l.room = make(chan struct{})
	}
	room := l.room
	if !l.starved {
		close(l.room)
		l.room = nil
	}
	return room
}

// Waits reports whether the policy is Block.
func (l *Log) Waits() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.policy == Block
}

// Park gives up memory that a sealed log holds: its bytes move to the spill
// file as far as there is one. It reports whether they are out of memory.
func (l *Log) Park() bool {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.closed && l.inMemory < len(l.blocks) {
		b := l.blocks[l.inMemory]
		if l.spillOff || l.disk+int64(b.used) > l.diskSize() {
			break
		}
		l.spillOut(b)
	}
	return l.inMemory == len(l.blocks)
}

// Memory returns the bytes that the log holds in memory.
func (l *Log) Memory() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.memory
}

// Overhead returns about how much memory the log takes: its bytes in memory,
// and what it knows of those that are not.
func (l *Log) Overhead() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	const ofLog, ofBlock = 512, 112
	return ofLog + l.memory + ofBlock*len(l.blocks)
}
