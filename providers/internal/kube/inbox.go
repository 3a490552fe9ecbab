package kube

import (
	"net"
	"os"
	"sync"
	"time"
)

// inboxSize bounds what waits for a reader.
const inboxSize = 256 << 10

// inbox holds what a command wrote until it is read. One puts, one takes.
type inbox struct {
	mu       sync.Mutex
	changed  sync.Cond
	data     []byte // what waits begins at from
	from     int
	shut     bool // by the reader
	ended    bool // by the writer
	deadline time.Time
	alarm    *time.Timer
}

func newInbox() *inbox {
	b := &inbox{}
	b.changed.L = &b.mu
	return b
}

// Write waits for room. What comes after shutting is let go.
func (b *inbox) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.data)-b.from > 0 && len(b.data)-b.from+len(p) > inboxSize && !b.shut {
		b.changed.Wait()
	}
	if b.shut {
		return len(p), nil
	}
	if b.from > 0 && len(b.data)+len(p) > cap(b.data) {
		b.data = b.data[:copy(b.data, b.data[b.from:])]
		b.from = 0
	}
	b.data = append(b.data, p...)
	b.changed.Broadcast()
	return len(p), nil
}

// read waits for data. It reports false when the writer has ended and all is
// read.
func (b *inbox) read(p []byte) (n int, more bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		switch {
		case b.shut:
			return 0, false, net.ErrClosed
		case !b.deadline.IsZero() && !time.Now().Before(b.deadline):
			return 0, true, os.ErrDeadlineExceeded
		case b.from < len(b.data) || len(p) == 0:
			n = copy(p, b.data[b.from:])
			if b.from += n; b.from == len(b.data) {
				b.data, b.from = b.data[:0], 0
			}
			b.changed.Broadcast()
			return n, true, nil
		case b.ended:
			return 0, false, nil
		}
		b.changed.Wait()
	}
}

// wake has a reader look at the time. The lock keeps it from coming between the
// reader's last look and its sleep.
func (b *inbox) wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changed.Broadcast()
}

// end says that nothing more comes.
func (b *inbox) end() {
	b.mu.Lock()
	b.ended = true
	b.mu.Unlock()
	b.changed.Broadcast()
}

// close lets go of what waits and of what still comes.
func (b *inbox) close() {
	b.mu.Lock()
	b.shut, b.data, b.from = true, nil, 0
	if b.alarm != nil {
		b.alarm.Stop()
	}
	b.mu.Unlock()
	b.changed.Broadcast()
}

func (b *inbox) setDeadline(at time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shut {
		return net.ErrClosed
	}
	if b.alarm != nil {
		b.alarm.Stop()
	}
	b.deadline = at
	if !at.IsZero() {
		b.alarm = time.AfterFunc(time.Until(at), b.wake)
	}
	b.changed.Broadcast()
	return nil
}
