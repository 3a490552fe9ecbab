package server

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/sandgate/sandgate/server/audit"
	"github.com/sandgate/sandgate/server/call"
)

// lines is a writer that many goroutines use, and that can fail.
type lines struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	fail error
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail != nil {
		n, _ := l.buf.Write(p[:len(p)/2])
		return n, l.fail
	}
	return l.buf.Write(p)
}

func (l *lines) setFail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail = err
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// records returns what was written for one request id, without what differs
// from run to run.
func (l *lines) records(t *testing.T, requestID string) []map[string]any {
	t.Helper()
	var list []map[string]any
	for line := range strings.Lines(l.String()) {
		var r map[string]any
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if r["request_id"] != requestID {
			continue
		}
		for _, key := range []string{"time", "level", "msg", "log", "seq", "request_id", "peer", "duration_seconds"} {
			delete(r, key)
		}
		list = append(list, r)
	}
	return list
}

// await returns the records of a call once n of them are there: the last is
// written after the caller has its answer.
func (l *lines) await(t *testing.T, requestID string, n int) []map[string]any {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if list := l.records(t, requestID); len(list) >= n || time.Now().After(deadline) {
			if len(list) != n {
				t.Fatalf("%d records of %s, want %d: %v", len(list), requestID, n, list)
			}
			return list
		}
	}
}

func audited(t *testing.T, change func(*Config)) (*harness, *lines) {
	t.Helper()
	log := &lines{}
	return newHarness(t, func(c *Config) {
		c.Audit = audit.NewLog(log)
		if change != nil {
			change(c)
		}
	}), log
}

func withRequestID(ctx context.Context, id string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, call.RequestIDKey, id)
}

func wantRecord(t *testing.T, got map[string]any, want string) {
	t.Helper()
	var h map[string]any
	if err := json.Unmarshal([]byte(want), &h); err != nil {
		t.Fatal(err)
	}
	g, _ := json.Marshal(got)
	if n, _ := json.Marshal(h); !bytes.Equal(g, n) {
		t.Errorf("record\n%s, want\n%s", g, n)
	}
}
