package history

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sandgate/sandgate/agent/tree"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

func TestBounds(t *testing.T) {
	h := New(t.TempDir())
	defer h.Close()
	now := time.Now()
	end := func(i int) *Ended {
		return &Ended{encoded: fmt.Sprintf("id%05d", i), idLen: 7, ended: now.Sub(epoch), retention: Retention}
	}
	const more = 50
	for i := range maxEnded + more {
		h.Add(end(i))
		h.Trim(now)
	}
	if n := len(h.byID); n != maxEnded {
		t.Fatalf("%d commands are kept", n)
	}
	// The oldest are dropped; their ids are remembered.
	for i := range more {
		id := fmt.Sprintf("id%05d", i)
		if _, ok := h.Find(id); ok || !h.Forgot(id) {
			t.Fatalf("%s: kept %v, remembered %v", id, ok, h.Forgot(id))
		}
	}
	// When their retention ends they go without a trace.
	h.Trim(now.Add(Retention))
	if len(h.byID) != 0 || h.bytes != 0 || h.first != nil || h.last != nil {
		t.Fatalf("%d are left, %d bytes", len(h.byID), h.bytes)
	}
	if h.Forgot(fmt.Sprintf("id%05d", maxEnded)) {
		t.Fatal("an id whose retention ended is remembered")
	}
	// Long records are bounded by bytes.
	for i := range maxEnded {
		e := end(i)
		e.encoded += strings.Repeat("x", 1000)
		h.Add(e)
		h.Trim(now)
	}
	if h.bytes > maxEndedBytes || len(h.byID) < maxEndedBytes/1500 {
		t.Fatalf("%d records of %d bytes", len(h.byID), h.bytes)
	}
}

// Without a directory for the archive the oldest output is dropped, and readers
// find a gap.
func TestOutputIsDroppedWithoutAnArchive(t *testing.T) {
	h := New("")
	defer h.Close()
	var list []*Ended
	for i := range 100 {
		log := streaming.NewLog(streaming.Options{})
		for left := maxInMemory / 2; left > 0; {
			n, err := log.Fill(streaming.Stdout, func(b []byte) (int, error) { return min(len(b), left), nil })
			if err != nil {
				t.Fatal(err)
			}
			left -= n
		}
		log.MarkExit()
		log.Seal()
		e := Encode(Command{
			ID: fmt.Sprint(i), Exited: &sandboxv1.Exited{Position: maxInMemory / 2}, End: time.Now(), Log: log, Tree: tree.Empty{},
		})
		h.Add(e)
		list = append(list, e)
	}
	if h.held > maxOutput {
		t.Fatalf("%d bytes are held", h.held)
	}
	read := func(e *Ended) (data, gap int64) {
		r, err := e.open(h.archive, e.exited().GetPosition()).NewReader(0, true)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for {
			c, err := r.Try(streaming.LargeChunk)
			if err != nil {
				return data, gap
			}
			data, gap = data+int64(len(c.Data)), gap+c.Gap
			c.Release()
		}
	}
	if data, gap := read(list[0]); data != 0 || gap != maxInMemory/2 || list[0].first(h.archive) != gap {
		t.Errorf("of the oldest %d bytes are retained and %d dropped", data, gap)
	}
	if data, gap := read(list[99]); data != maxInMemory/2 || gap != 0 {
		t.Errorf("of the newest %d bytes are retained and %d dropped", data, gap)
	}
}

// A record loads what was encoded.
func TestEndedCommandSurvivesEncoding(t *testing.T) {
	h := New(t.TempDir())
	defer h.Close()
	log := streaming.NewLog(streaming.Options{})
	log.MarkExit()
	log.Seal()
	code := int32(7)
	in := Command{
		ID: "one", Text: "exit 7", Hash: [32]byte{1}, Detached: true, Pid: os.Getpid(), Start: time.Unix(1, 2), End: time.Unix(3, 4),
		Retention: time.Minute, Stdin: 5, Exited: &sandboxv1.Exited{ExitCode: &code}, Log: log, Tree: tree.Empty{},
	}
	h.Add(Encode(in))
	out, ok := h.Find("one")
	if !ok || out.ID != in.ID || out.Text != in.Text || out.Hash != in.Hash || !out.Detached || out.Terminal || out.Pid != in.Pid ||
		!out.Start.Equal(in.Start) || !out.End.Equal(in.End) || out.Retention != in.Retention || out.Stdin != in.Stdin || out.Exited.GetExitCode() != 7 {
		t.Errorf("%v: got %+v", ok, out)
	}
}
