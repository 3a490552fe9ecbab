package sshserver

import (
	"context"
	"encoding/binary"
	"io"
	"sync"

	"golang.org/x/crypto/ssh"
)

// openPacket is the type of SSH_FXP_OPEN.
const openPacket = 3

// packets is the channel of an SFTP session. After a request that opens a file, the next
// one waits for its answer: pkg/sftp handles reads and writes beside other requests, and
// one that guesses the handle would race with the opening. The number of requests that
// wait is bounded: pkg/sftp keeps all answers that are behind one that takes long.
//
// The end of the input cancels reading from the sandbox, since nobody waits for it.
type packets struct {
	ssh.Channel
	cancel context.CancelCauseFunc

	// Of the input, which one goroutine reads.
	head    []byte // of the present packet, not delivered yet
	body    int64  // bytes of the packet that follow
	opening bool   // it opens a file

	mu       sync.Mutex
	answered sync.Cond
	asked    int // requests that were delivered
	answers  int // that were written
	length   [4]byte
	known    int   // bytes of length
	rest     int64 // bytes of the present answer that follow
}

func newPackets(channel ssh.Channel, cancel context.CancelCauseFunc) *packets {
	p := &packets{Channel: channel, cancel: cancel}
	p.answered.L = &p.mu
	return p
}

// Read returns bytes of one packet.
func (p *packets) Read(b []byte) (n int, err error) {
	defer func() {
		if err != nil {
			p.cancel(errDisconnected)
		}
	}()
	if len(p.head) == 0 && p.body == 0 {
		if err := p.next(); err != nil {
			return 0, err
		}
	}
	if len(p.head) > 0 {
		n = copy(b, p.head)
		p.head = p.head[n:]
		return n, nil
	}
	n, err = p.Channel.Read(b[:min(int64(len(b)), p.body)])
	p.body -= int64(n)
	return n, err
}

// next begins a packet: its length and type.
func (p *packets) next() error {
	waiting := maxRequests
	if p.opening {
		waiting = 1
	}
	p.mu.Lock()
	for p.asked-p.answers >= waiting {
		p.answered.Wait()
	}
	p.mu.Unlock()
	p.head = make([]byte, 5)
	if _, err := io.ReadFull(p.Channel, p.head); err != nil {
		p.head = nil
		return err
	}
	p.body = max(int64(binary.BigEndian.Uint32(p.head))-1, 0)
	p.opening = p.head[4] == openPacket
	p.mu.Lock()
	p.asked++
	p.mu.Unlock()
	return nil
}

// Write counts answers: there is one for each request.
func (p *packets) Write(b []byte) (int, error) {
	n, err := p.Channel.Write(b)
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(b) > 0 {
		if p.rest == 0 {
			taken := copy(p.length[p.known:], b)
			p.known, b = p.known+taken, b[taken:]
			if p.known < len(p.length) {
				break
			}
			p.known, p.rest = 0, int64(binary.BigEndian.Uint32(p.length[:]))
		}
		taken := min(p.rest, int64(len(b)))
		if p.rest, b = p.rest-taken, b[taken:]; p.rest == 0 {
			p.answers++
			p.answered.Broadcast()
		}
	}
	return n, err
}

// Close also ends the wait for an answer.
func (p *packets) Close() error {
	p.mu.Lock()
	p.answers = p.asked
	p.answered.Broadcast()
	p.mu.Unlock()
	return p.Channel.Close()
}
