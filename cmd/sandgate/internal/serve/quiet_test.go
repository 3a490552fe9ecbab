package serve

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"k8s.io/klog/v2"
)

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
	klog.ClearLogger()
}
