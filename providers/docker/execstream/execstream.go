// Package execstream makes a connection of the stream of a Docker exec.
package execstream

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"

	"github.com/moby/moby/client"
)

// Conn is the stream of an exec without a terminal, as a connection to its command. What comes from the daemon has a header of 8
// bytes before each piece: the stream, three zeros, the length.
type Conn struct {
	net.Conn
	reader *bufio.Reader

	mu     sync.Mutex // of reads
	left   uint32     // of the piece that is being read
	failed error
	text   []byte // what the command wrote to standard error
}

const (
	headerSize = 8
	maxText    = 1 << 10

	streamOut = 1
	streamErr = 2
)

// New returns the connection of a stream that was attached.
func New(h client.HijackedResponse) *Conn {
	return &Conn{Conn: h.Conn, reader: h.Reader}
}

// Read reads what the command wrote to standard output. It may be called again after a
// deadline.
func (c *Conn) Read(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed != nil {
		return 0, c.failed
	}
	if len(b) == 0 {
		return 0, nil
	}
	for c.left == 0 {
		if err := c.header(); err != nil {
			return 0, err
		}
	}
	n, err := c.reader.Read(b[:min(uint32(len(b)), c.left)])
	c.left -= uint32(n)
	if errors.Is(err, io.EOF) {
		err = c.fail(io.ErrUnexpectedEOF)
	}
	return n, err
}

// header reads the next header and, of standard error, the piece behind it. A timeout
// leaves all of it unread.
func (c *Conn) header() error {
	head, err := c.reader.Peek(headerSize)
	if err != nil {
		return c.end(len(head), err)
	}
	size := binary.BigEndian.Uint32(head[4:])
	switch head[0] {
	case streamOut:
		c.left = size
		_, err = c.reader.Discard(headerSize)
		return err
	case streamErr:
		if size > maxText {
			return c.fail(fmt.Errorf("the exec wrote %d bytes to standard error", size))
		}
		piece, err := c.reader.Peek(headerSize + int(size))
		if err != nil {
			return c.end(len(piece), err)
		}
		if len(c.text) < maxText {
			c.text = append(c.text, piece[headerSize:]...)
		}
		_, err = c.reader.Discard(len(piece))
		return err
	default:
		return c.fail(fmt.Errorf("the Docker daemon sent a piece of stream %d", head[0]))
	}
}

// end turns the end of the stream into an error. An error of the network, such as a
// timeout, stays as it is.
func (c *Conn) end(pending int, err error) error {
	switch {
	case !errors.Is(err, io.EOF):
		return err
	case pending > 0:
		return c.fail(io.ErrUnexpectedEOF)
	case len(c.text) > 0:
		return c.fail(fmt.Errorf("%s: %w", strings.TrimSpace(strings.ToValidUTF8(string(c.text), "?")), io.ErrUnexpectedEOF))
	default:
		return c.fail(io.EOF)
	}
}

func (c *Conn) fail(err error) error {
	c.failed = err
	return err
}
