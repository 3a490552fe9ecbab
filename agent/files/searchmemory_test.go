package files_test

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sandgate/sandgate/agent/files"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// What searches hold is bounded, however many processors there are and however
// many searches run.
func TestSearchesHoldBoundedMemory(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(16))
	defer debug.SetGCPercent(debug.SetGCPercent(20))
	svc, _ := start(t, files.Config{})
	dir := t.TempDir()
	text := strings.Repeat(strings.Repeat("a", 300)+"\n", 600)
	for i := range 60 {
		write(t, fmt.Sprintf("%s/%02d/f", dir, i), text)
	}
	search := func() error {
		_, err := svc.SearchFiles(called(t.Context(), nil), &sandboxv1.SearchFilesRequest{
			Path: dir, Pattern: "a", ContextBefore: 20, ContextAfter: 20,
		})
		return err
	}
	for _, calls := range []int{1, 12} {
		runtime.GC()
		var before runtime.MemStats
		runtime.ReadMemStats(&before)
		var peak atomic.Uint64
		var wg sync.WaitGroup
		done := make(chan struct{})
		for range calls {
			wg.Go(func() {
				if err := search(); err != nil {
					t.Error(err)
				}
			})
		}
		go func() { wg.Wait(); close(done) }()
		for running := true; running; {
			select {
			case <-done:
				running = false
			default:
			}
			var now runtime.MemStats
			runtime.ReadMemStats(&now)
			peak.Store(max(peak.Load(), now.HeapAlloc))
			runtime.Gosched()
		}
		grown := int64(peak.Load()-before.HeapAlloc) >> 20
		t.Logf("%d at once: %d MiB", calls, grown)
		if grown > 40 {
			t.Errorf("%d searches took %d MiB", calls, grown)
		}
	}
}
