package serve

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"

	"k8s.io/klog/v2"
)

// The first test's clients must find client-go's log set, as those of a server do.
func TestMain(m *testing.M) {
	quietClientGo(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

// What the cluster's client logs, errors too, is for debugging.
func TestClientGoLogsForDebuggingOnly(t *testing.T) {
	for level, want := range map[slog.Level]int{slog.LevelWarn: 0, slog.LevelDebug: 2} {
		var out bytes.Buffer
		quietClientGo(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level})))
		klog.ErrorS(errors.New("broken"), "a stream")
		klog.InfoS("a stream")
		klog.Flush()
		if got := strings.Count(out.String(), "level=DEBUG"); got != want || strings.Count(out.String(), "\n") != want {
			t.Errorf("at %v: %s", level, out.String())
		}
	}
	quietClientGo(slog.New(slog.DiscardHandler))
}

// A second server in a process replaces the log while clients of the first still use it.
func TestClientGoLogIsReplacedInUse(t *testing.T) {
	used := make(chan struct{})
	go func() {
		defer close(used)
		for range 100 {
			klog.InfoS("a stream")
		}
	}()
	for range 100 {
		quietClientGo(slog.New(slog.DiscardHandler))
	}
	<-used
}
