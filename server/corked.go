package server

import (
	"net"
	"sync"
	"time"
)

// corkTime is how long the beginning of a call waits for the call's message.
const corkTime = 500 * time.Microsecond

// corked is a connection of a gRPC client that writes the beginning of a call
// together with the message that follows at once. gRPC flushes the first alone
// when it is quicker than the caller, and on a long way each write costs every
// process on it a turn.
type corked struct {
	net.Conn

	mu    sync.Mutex
	held  []byte
	timer *time.Timer
	err   error
}

func (c *corked) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	if endsInHeaders(p) {
		c.held = append(c.held, p...)
		if c.timer == nil {
			c.timer = time.AfterFunc(corkTime, c.late)
		} else {
			c.timer.Reset(corkTime)
		}
		return len(p), nil
	}
	if len(c.held) == 0 {
		return c.Conn.Write(p)
	}
	c.timer.Stop()
	c.held = append(c.held, p...)
	if err := c.flush(); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (c *corked) flush() error {
	if len(c.held) > 0 {
		_, c.err = c.Conn.Write(c.held)
		c.held = c.held[:0]
	}
	return c.err
}

// late writes what has waited long enough. A failure ends the connection, since
// nobody waits for this write.
func (c *corked) late() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flush() != nil {
		_ = c.Close()
	}
}

const (
	frameHeader  = 9 // bytes: the length of three, kind, flags, stream
	frameHeaders = 1
	endStream    = 0x1
	endHeaders   = 0x4
	// corkLimit keeps all but short beginnings of calls from being copied.
	corkLimit = 4 << 10
)

// endsInHeaders reports whether these frames of HTTP/2 end in one that begins a
// stream, and neither ends it nor goes on in another frame.
func endsInHeaders(p []byte) bool {
	if len(p) > corkLimit {
		return false
	}
	begins := false
	for len(p) >= frameHeader {
		size := frameHeader + (int(p[0])<<16 | int(p[1])<<8 | int(p[2]))
		if size > len(p) {
			return false
		}
		begins = p[3] == frameHeaders && p[4]&(endStream|endHeaders) == endHeaders
		p = p[size:]
	}
	return begins && len(p) == 0
}
