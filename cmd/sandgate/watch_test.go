package main

import (
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/sandgate/sandgate/clients/go/fake"
)

// Events come one in a line, over broken connections, until the server refuses.
func TestWatch(t *testing.T) {
	var calls atomic.Int32
	server := fake.Start(t, &fake.Server{Fail: func(method string) error {
		if strings.HasSuffix(method, "/WatchSandboxes") && calls.Add(1) > 2 {
			return fake.Error(codes.PermissionDenied, "CALL_FORBIDDEN", "no more")
		}
		return nil
	}})
	r := run(t.Context(), server, "", "watch", "--cursor", "5", "--type", "created", "--label", "k=v", "--output", "json")
	var got []string
	for line := range strings.Lines(r.stdout) {
		var m struct {
			Cursor string
			Event  struct {
				EventID string `json:"eventId"`
				Labels  map[string]string
			}
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil || m.Event.Labels["k"] != "v" || m.Event.EventID != "e"+m.Cursor {
			t.Errorf("%q: %v", line, err)
		}
		got = append(got, m.Cursor)
	}
	if strings.Join(got, " ") != "6 7 8 9" || r.code != 125 || !strings.Contains(r.stderr, "CALL_FORBIDDEN") {
		t.Errorf("%q, %+v", got, r)
	}
	calls.Store(1)
	if r := run(t.Context(), server, "", "watch"); strings.Count(r.stdout, "  s  created\n") != 2 {
		t.Errorf("%+v", r)
	}
	if r := run(t.Context(), server, "", "watch", "--type", "exploded"); r.code != 125 || !strings.Contains(r.stderr, "--type") {
		t.Errorf("%+v", r)
	}
}
