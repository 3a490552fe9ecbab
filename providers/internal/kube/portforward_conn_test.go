package kube

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"

	framing "github.com/moby/spdystream/spdy"
)

// nodeWire is what a node says, and what is said to it.
type nodeWire struct {
	io.Reader
	bytes.Buffer
	writes int
}

func (w *nodeWire) Read(p []byte) (int, error) { return w.Reader.Read(p) }

func (w *nodeWire) Write(p []byte) (int, error) {
	w.writes++
	return w.Buffer.Write(p)
}

func (w *nodeWire) Close() error { return nil }

// says is a connection to a node that says just this.
func says(frames ...[]byte) (*forwarded, *nodeWire) {
	w := &nodeWire{Reader: bytes.NewReader(bytes.Join(frames, nil))}
	return newForwarded(w, "ns/pod:1"), w
}

func dataFrame(stream uint32, flags framing.DataFlags, content string) []byte {
	b := binary.BigEndian.AppendUint32(nil, stream)
	b = binary.BigEndian.AppendUint32(b, uint32(flags)<<24|uint32(len(content)))
	return append(b, content...)
}

func controlFrame(kind framing.ControlFrameType, content ...byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, 1<<31|framing.Version<<16|uint32(kind))
	b = binary.BigEndian.AppendUint32(b, uint32(len(content)))
	return append(b, content...)
}

// TestForwardedFrames: whatever a node says beside the data, the data is what
// arrives, and an end that is none is told from one that is.
func TestForwardedFrames(t *testing.T) {
	reset := controlFrame(framing.TypeRstStream, 0, 0, 0, dataStream, 0, 0, 0, byte(framing.Cancel))
	end := dataFrame(dataStream, framing.DataFlagFin, "")
	for _, c := range []struct {
		name   string
		frames [][]byte
		want   string
		err    error
		says   string
	}{
		{"pieces", [][]byte{dataFrame(dataStream, 0, "hel"), dataFrame(dataStream, 0, ""), dataFrame(dataStream, framing.DataFlagFin, "lo")}, "hello", nil, ""},
		{"other frames between", [][]byte{
			controlFrame(framing.TypeSynReply, 0, 0, 0, dataStream, 1, 2, 3), dataFrame(dataStream, 0, "hel"),
			dataFrame(99, 0, "nobody's"), controlFrame(framing.TypeSettings), controlFrame(77, 1, 2), dataFrame(dataStream, 0, "lo"), end,
		}, "hello", nil, ""},
		{"a long one", [][]byte{dataFrame(dataStream, 0, strings.Repeat("x", 300<<10)), end}, strings.Repeat("x", 300<<10), nil, ""},
		{"a reset of another stream", [][]byte{controlFrame(framing.TypeRstStream, 0, 0, 0, errorStream, 0, 0, 0, 5), dataFrame(dataStream, 0, "x"), end}, "x", nil, ""},
		{"what went wrong", [][]byte{dataFrame(dataStream, 0, "x"), dataFrame(errorStream, 0, "connection "), dataFrame(errorStream, 1, "refused"), end}, "x", errNotForwarded, "connection refused"},
		{"what went wrong, and a reset", [][]byte{dataFrame(errorStream, 0, "refused"), reset}, "", errNotForwarded, "refused"},
		{"more went wrong than anybody reads", [][]byte{dataFrame(errorStream, 0, strings.Repeat("no ", 1<<20)), dataFrame(errorStream, 0, "no"), end}, "", errNotForwarded, "no no"},
		{"a reset", [][]byte{dataFrame(dataStream, 0, "x"), reset}, "x", io.ErrUnexpectedEOF, ""},
		{"a farewell before the end", [][]byte{dataFrame(dataStream, 0, "x"), controlFrame(framing.TypeGoAway, 0, 0, 0, 0, 0, 0, 0, 0)}, "x", io.ErrUnexpectedEOF, ""},
		{"an end within the content", [][]byte{dataFrame(dataStream, 0, "hello")[:10]}, "he", io.ErrUnexpectedEOF, ""},
		{"an end within a header", [][]byte{{0, 0}}, "", io.ErrUnexpectedEOF, ""},
		{"an end between frames", [][]byte{dataFrame(dataStream, 0, "x")}, "x", io.ErrUnexpectedEOF, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, _ := says(c.frames...)
			got, err := io.ReadAll(conn)
			if string(got) != c.want || !errors.Is(err, c.err) || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			if err != nil && len(err.Error()) > 2*refusalLimit {
				t.Errorf("it says %d bytes", len(err.Error()))
			}
		})
	}
	t.Run("a ping is answered", func(t *testing.T) {
		ping := controlFrame(framing.TypePing, 0, 0, 0, 2)
		conn, w := says(ping, end)
		if _, err := io.ReadAll(conn); err != nil || !bytes.Equal(w.Bytes(), ping) {
			t.Errorf("%x, %v", w.Bytes(), err)
		}
	})
}

// TestForwardedGathers: what is written piece by piece goes out at once, and is
// not kept where it is too much.
func TestForwardedGathers(t *testing.T) {
	conn, w := says()
	n, err := conn.gather(func() (int, error) {
		for _, part := range []int{10, 20 << 10, 16 << 10, 1} {
			if _, err := conn.Write(bytes.Repeat([]byte("x"), part)); err != nil {
				return 0, err
			}
		}
		if w.writes > 0 {
			t.Error("it was sent before its end")
		}
		return 7, nil
	})
	if n != 7 || err != nil || w.writes != 1 {
		t.Errorf("%d, %v, %d writes", n, err, w.writes)
	}
	back, _ := says(w.Bytes(), dataFrame(dataStream, framing.DataFlagFin, ""))
	got, err := io.ReadAll(back)
	if err != nil || len(got) != 10+(36<<10)+1 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := conn.Write([]byte("alone")); err != nil || w.writes != 2 {
		t.Errorf("%v, %d writes", err, w.writes)
	}
	_, err = conn.gather(func() (int, error) { return conn.Write(make([]byte, 10<<20)) })
	if err != nil || cap(conn.out) > 4*forwardChunk {
		t.Errorf("%v, %d bytes are kept", err, cap(conn.out))
	}
}
