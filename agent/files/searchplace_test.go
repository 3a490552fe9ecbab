package files

import (
	"context"
	"testing"
	"time"

	"github.com/sandgate/sandgate/agent/files/search"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// The time of a search includes the wait for other searches.
func TestSearchTimeIncludesWait(t *testing.T) {
	s := New(Config{SearchTime: 10 * time.Millisecond})
	defer s.Close()
	for range search.MaxSearches {
		release, err := s.search.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer release()
	}
	ctx, cancel := context.WithTimeout(unconfined(t.Context()), 10*time.Second)
	defer cancel()
	got, err := s.SearchFiles(ctx, &sandboxv1.SearchFilesRequest{Path: t.TempDir(), Pattern: "x"})
	if err != nil || !got.GetTruncated() || got.GetTruncationReason() != sandboxv1.TruncationReason_TRUNCATION_REASON_TIME {
		t.Errorf("%v, %v", got, err)
	}
	// The caller's own end is an error still.
	ended, end := context.WithCancel(unconfined(t.Context()))
	end()
	if got, err := s.SearchFiles(ended, &sandboxv1.SearchFilesRequest{Path: t.TempDir(), Pattern: "x"}); err == nil {
		t.Errorf("a cancelled search: %v", got)
	}
}
