package streaming

// makeRoom frees memory for a block of size bytes. It moves the oldest bytes in
// memory to the spill file and, if that is full, evicts the oldest bytes. It returns
// false if it had to unlock mu in between; then the caller must retry. It requires
// wmu and mu.
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

// spillOut moves the oldest block in memory to the spill file. It writes without mu:
// only the last block changes, and only under wmu.
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
		// The disk is full. Spilled bytes stay readable, and the log continues in
		// memory.
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

// evictable reports whether the oldest block may be evicted.
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

// reserved returns how many bytes behind the fastest reader are protected: at most a
// quarter of the retained bytes, so that the writer does not block forever.
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
	b.freed = true
	if b.buf != nil {
		l.free(b, b.buf)
		return
	}
	l.disk -= int64(b.used)
	l.inMemory--
}

// notifyWriter calls Options.Room if the writer is starved. It requires mu.
func (l *Log) notifyWriter() {
	if !l.starved {
		return
	}
	l.starved = false
	if l.o.Room != nil {
		l.o.Room()
	}
}

// Waits reports whether the policy is Block.
func (l *Log) Waits() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.policy == Block
}

// Park moves the bytes of a sealed log to its spill file, as far as it has one. It
// reports whether none are left in memory.
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

// Overhead returns about how much memory the log takes: its bytes in memory and its
// index.
func (l *Log) Overhead() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	const ofLog, ofBlock = 512, 112
	return ofLog + l.memory + ofBlock*len(l.blocks)
}
