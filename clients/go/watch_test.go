package sandgate

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/sandgate/sandgate/clients/go/fake"
)

// A watch continues after each break, and from a cursor.
func TestWatch(t *testing.T) {
	client, ctx := connect(t, &fake.Server{}), within(t)
	if _, err := client.ServerInfo(ctx); err != nil {
		t.Fatal(err)
	}
	for cursor, first := range map[string]int{"": 1, "10": 11} {
		next := first
		for w, err := range client.Watch(ctx, WatchRequest{Cursor: cursor, Labels: map[string]string{"k": "v"}}) {
			if err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprint(next); w.Cursor != want || w.Event.GetEventId() != "e"+want || w.Event.GetType() != EventCreated || w.Event.GetLabels()["k"] != "v" {
				t.Fatalf("got %+v, want %s", w, want)
			}
			if next++; next == first+6 {
				break
			}
		}
		if next != first+6 {
			t.Errorf("ended before %d", next)
		}
	}
	for w, err := range client.Watch(ctx, WatchRequest{Cursor: "x"}) {
		if !errors.Is(err, ErrInvalidRequest) || w.Event != nil {
			t.Errorf("%+v, %v", w, err)
		}
	}
}

// A watch whose server stays away ends, with the cursor to continue from.
func TestWatchGivesUp(t *testing.T) {
	failing := false
	server := &fake.Server{Fail: func(string) error {
		if failing {
			return fake.Error(codes.Unavailable, "PROVIDER_UNAVAILABLE", "away")
		}
		return nil
	}}
	client := connect(t, server, WithReconnectTimeout(1))
	if _, err := client.ServerInfo(within(t)); err != nil {
		t.Fatal(err)
	}
	var last Watched
	var failed error
	for w, err := range client.Watch(within(t), WatchRequest{}) {
		last, failed, failing = w, err, true
	}
	if last.Cursor != "2" || last.Event != nil || !errors.Is(failed, ErrUnavailable) {
		t.Errorf("%+v, %v", last, failed)
	}
}
