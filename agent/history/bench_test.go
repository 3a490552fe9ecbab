package history

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandgate/sandgate/agent/tree"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

// BenchmarkMemory reports the heap that one ended command takes in the history, and
// the heap that the same command takes as a decoded Command in a map.
func BenchmarkMemory(b *testing.B) {
	for _, output := range []int{0, 100, 4000} {
		b.Run(fmt.Sprintf("output=%d/encoded", output), func(b *testing.B) {
			h := New(b.TempDir())
			defer h.Close()
			perCommand(b, func(i int) { h.Add(Encode(ended(b, i, output))) })
			runtime.KeepAlive(h)
		})
		b.Run(fmt.Sprintf("output=%d/decoded", output), func(b *testing.B) {
			byID := map[string]Command{}
			perCommand(b, func(i int) { c := ended(b, i, output); byID[c.ID] = c })
			runtime.KeepAlive(byID)
		})
	}
}

func perCommand(b *testing.B, add func(i int)) {
	const commands = maxEnded
	for range b.N {
		before := heap()
		for i := range commands {
			add(i)
		}
		b.ReportMetric(float64(heap()-before)/commands, "B/command")
	}
	b.ReportMetric(0, "ns/op")
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// ended returns a command that exited with status 0 after output bytes.
func ended(b *testing.B, i, output int) Command {
	log := streaming.NewLog(streaming.Options{})
	rest := output
	for rest > 0 {
		n, err := log.Fill(streaming.Stdout, func(p []byte) (int, error) { return min(rest, len(p)), context.Cause(b.Context()) })
		if err != nil {
			b.Fatal(err)
		}
		rest -= n
	}
	log.MarkExit()
	log.Seal()
	start := time.Unix(1_700_000_000, int64(i))
	return Command{
		ID: fmt.Sprintf("exec-%016x", i), Text: "python3 -m pytest -q tests", Hash: [32]byte{byte(i)}, Pid: 100 + i,
		Start: start, End: start.Add(time.Second), Retention: Retention, Log: log, Tree: tree.Empty{},
		Exited: &sandboxv1.Exited{
			Reason: sandboxv1.ExitReason_EXIT_REASON_EXITED, ExitCode: proto.Int32(0), Position: int64(output),
			WallTime: durationpb.New(time.Second), UserTime: durationpb.New(time.Second / 2), SystemTime: durationpb.New(time.Second / 10),
			EndTime: timestamppb.New(start.Add(time.Second)),
		},
	}
}
