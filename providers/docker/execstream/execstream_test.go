package execstream

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func piece(stream byte, text string) []byte {
	head := []byte{stream, 0, 0, 0, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(head[4:], uint32(len(text)))
	return append(head, text...)
}

func TestConnReads(t *testing.T) {
	long := strings.Repeat("x", maxText+1)
	for what, c := range map[string]struct {
		stream []byte
		want   string
		err    error  // nil: the end
		text   string // in the error
	}{
		"pieces":                 {bytes.Join([][]byte{piece(1, "ab"), piece(1, ""), piece(1, long)}, nil), "ab" + long, nil, ""},
		"standard error":         {append(piece(1, "a"), piece(2, "no agent\n")...), "a", io.ErrUnexpectedEOF, "no agent"},
		"a torn header":          {append(piece(1, "a"), 1, 0, 0), "a", io.ErrUnexpectedEOF, ""},
		"a torn piece":           {piece(1, "abc")[:headerSize+1], "a", io.ErrUnexpectedEOF, ""},
		"another stream":         {piece(7, "a"), "", nil, "stream 7"},
		"a long error":           {piece(2, long), "", nil, "1025 bytes"},
		"nothing":                {nil, "", nil, ""},
		"a torn piece of errors": {piece(2, "abc")[:headerSize+1], "", io.ErrUnexpectedEOF, ""},
	} {
		conn := &Conn{reader: bufio.NewReader(iotest.OneByteReader(bytes.NewReader(c.stream)))}
		got, err := io.ReadAll(conn)
		if string(got) != c.want || c.err != nil && !errors.Is(err, c.err) || c.err == nil && c.text == "" && err != nil {
			t.Errorf("%s: %q, %v", what, got, err)
		}
		if c.text != "" && (err == nil || !strings.Contains(err.Error(), c.text)) {
			t.Errorf("%s: %v, want %s", what, err, c.text)
		}
	}
}

// A deadline in the middle of a header loses nothing.
func TestDeadlineInsideAHeaderLosesNothing(t *testing.T) {
	near, far := net.Pipe()
	defer func() { _, _ = near.Close(), far.Close() }()
	conn := &Conn{Conn: near, reader: bufio.NewReader(near)}
	all := piece(1, "hello")
	wrote := make(chan error, 2)
	go func() { _, err := far.Write(all[:5]); wrote <- err }()
	if err := conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	var netErr net.Error
	if _, err := conn.Read(make([]byte, 8)); !errors.As(err, &netErr) || !netErr.Timeout() {
		t.Fatalf("read: %v", err)
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	go func() { _, err := far.Write(all[5:]); wrote <- err }()
	got := make([]byte, 5)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
	for range 2 {
		if err := <-wrote; err != nil {
			t.Error(err)
		}
	}
}

// FuzzConn compares with a reading of the whole stream at once.
func FuzzConn(f *testing.F) {
	f.Add(append(piece(1, "ab"), piece(2, "c")...), 3)
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 9, 1}, 1)
	f.Fuzz(func(t *testing.T, stream []byte, size int) {
		conn := &Conn{reader: bufio.NewReader(bytes.NewReader(stream))}
		var got []byte
		b := make([]byte, 1+size&63)
		var err error
		for err == nil {
			var n int
			n, err = conn.Read(b)
			got = append(got, b[:n]...)
		}
		var want []byte
		for rest := stream; len(rest) >= headerSize; {
			n := min(int(binary.BigEndian.Uint32(rest[4:])), len(rest)-headerSize)
			if rest[0] == streamOut {
				want = append(want, rest[headerSize:headerSize+n]...)
			} else if rest[0] != streamErr || int(binary.BigEndian.Uint32(rest[4:])) != n || n > maxText {
				break
			}
			rest = rest[headerSize+n:]
		}
		if !bytes.Equal(got, want) {
			t.Errorf("read %q, want %q, from %q", got, want, stream)
		}
	})
}
