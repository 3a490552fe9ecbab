package sandgate

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// An address is refused or understood; a token's way is never taken for local
// because of how a foreign host is written.
func FuzzParseAddress(f *testing.F) {
	for _, address := range []string{"127.0.0.1:7777", "unix:///s", "https://h:1/", "[::1]:1", ":1", "localhost.evil:1", "http://", "://"} {
		f.Add(address)
	}
	f.Fuzz(func(t *testing.T, address string) {
		e, err := parseAddress(address)
		if err != nil {
			return
		}
		switch {
		case strings.HasPrefix(e.target, "unix:///"):
			if !e.local || e.tls {
				t.Errorf("%q: %+v", address, e)
			}
		case strings.HasPrefix(e.target, "dns:///"):
			if e.local && !strings.Contains(e.target, "127.") && !strings.Contains(e.target, "localhost") && !strings.Contains(e.target, ":") {
				t.Errorf("%q: %+v", address, e)
			}
		default:
			t.Errorf("%q: %+v", address, e)
		}
	})
}

// Whatever pieces a server repeats after a broken connection, the caller gets
// every byte of the log once and in order, or the gap.
func TestReplayedOutputIsTakenOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := rapid.SliceOfN(rapid.Byte(), 1, 200).Draw(t, "log")
		p := &Process{}
		got := make([]byte, 0, len(log))
		for p.position < int64(len(log)) {
			// A stream begins where the caller is, or before, and gives pieces.
			at := rapid.Int64Range(0, p.position).Draw(t, "begin")
			for pieces := rapid.IntRange(1, 5).Draw(t, "pieces"); pieces > 0 && at < int64(len(log)); pieces-- {
				end := rapid.Int64Range(at+1, int64(len(log))).Draw(t, "end")
				piece := append([]byte(nil), log[at:end]...)
				event, err := p.take(&sandboxv1.ExecuteResponse{Event: &sandboxv1.ExecuteResponse_Output{
					Output: &Output{Position: at, Data: piece},
				}})
				if err != nil {
					t.Fatal(err)
				}
				if event.Output != nil {
					if event.Output.GetPosition() != int64(len(got)) {
						t.Fatalf("position %d after %d bytes", event.Output.GetPosition(), len(got))
					}
					got = append(got, event.Output.GetData()...)
				}
				at = end
			}
		}
		if string(got) != string(log) {
			t.Fatalf("got %x, want %x", got, log)
		}
	})
}
