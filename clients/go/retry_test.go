package sandgate

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandgate/sandgate/clients/go/fake"
)

func reachedClient() *Client {
	c := &Client{}
	c.reached.Store(true)
	return c
}

func TestBackoff(t *testing.T) {
	r, now := reachedClient().retry(time.Minute), time.Now()
	begun, away := now, &Error{Code: codes.Unavailable}
	want := 50 * time.Millisecond
	for {
		wait, ok := r.next(now, away)
		if wait < want || wait > want+want/4 {
			t.Fatalf("waits %v, want %v or up to a quarter more", wait, want)
		}
		if !ok {
			break
		}
		now, want = now.Add(wait), min(2*want, 2*time.Second)
	}
	if total := now.Sub(begun); total < 57500*time.Millisecond || total > time.Minute {
		t.Errorf("the retry window ended after %v", total)
	}
}

// The retry window begins with the first failure, not with the call.
func TestRetryWindowBeginsWithTheFirstFailure(t *testing.T) {
	c, begun, away := reachedClient(), time.Now(), &Error{Code: codes.Unavailable}
	r := c.retry(unaryRetryWindow)
	for _, tt := range []struct {
		after time.Duration
		want  bool
	}{{100 * time.Second, true}, {129 * time.Second, true}, {130 * time.Second, false}} {
		if _, ok := r.next(begun.Add(tt.after), away); ok != tt.want {
			t.Errorf("after %v: %t", tt.after, ok)
		}
	}
	if _, ok := c.retry(0).next(begun, away); ok {
		t.Error("retries without a window")
	}
	if _, ok := (&Client{}).retry(time.Minute).next(begun, away); ok {
		t.Error("retries although the server has never answered")
	}
}

func TestRequestedWait(t *testing.T) {
	for requested, want := range map[time.Duration]time.Duration{
		0: 50 * time.Millisecond, time.Second: time.Second, 5 * time.Second: 5 * time.Second, time.Hour: 5 * time.Second,
	} {
		wait, ok := reachedClient().retry(time.Minute).next(time.Now(), &Error{Code: codes.Unavailable, RetryAfter: requested})
		if !ok || wait < want || wait > want+want/4 {
			t.Errorf("requested %v: waits %v, %t", requested, wait, ok)
		}
	}
}

func TestRetryInfo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failures atomic.Int32
		failures.Store(1)
		server := &fake.Server{Fail: func(string) error {
			if failures.Add(-1) >= 0 {
				return fake.Error(codes.Unavailable, "SERVER_SHUTTING_DOWN", "restarting", &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)})
			}
			return nil
		}}
		client := connect(t, server)
		begun := time.Now()
		if _, err := client.ServerInfo(t.Context()); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(begun); waited < time.Second || waited > 1250*time.Millisecond || server.Calls("GetServerInfo") != 2 {
			t.Errorf("waited %v, made %d calls", waited, server.Calls("GetServerInfo"))
		}
	})
}

func TestServerAwayForTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var away atomic.Bool
		server := &fake.Server{Away: away.Load}
		client := connect(t, server)
		if _, err := client.ServerInfo(t.Context()); err != nil {
			t.Fatal(err)
		}
		away.Store(true)
		server.Cut()
		begun := time.Now()
		time.AfterFunc(10*time.Second, func() { away.Store(false) })
		if _, err := client.ServerInfo(t.Context()); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(begun); waited < 10*time.Second || waited > 15*time.Second {
			t.Errorf("answered after %v", waited)
		}
	})
}

// A call whose outcome is unknown is not repeated.
func TestCallWithUnknownOutcomeIsNotRepeated(t *testing.T) {
	server := &fake.Server{}
	server.Late = func(method string) {
		if strings.HasSuffix(method, "/EditFile") {
			server.Cut()
		}
	}
	sandbox := create(t, connect(t, server), "a")
	if _, err := sandbox.Edit(within(t), "/x", "a", "b", false); !errors.Is(err, ErrUnavailable) {
		t.Errorf("error %v", err)
	}
	if n := server.Calls("EditFile"); n != 1 {
		t.Errorf("made %d calls", n)
	}
}

func TestTimeoutOfAllAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &fake.Server{Fail: func(string) error { return fake.Error(codes.Unavailable, "SERVER_SHUTTING_DOWN", "restarting") }}
		client := connect(t, server)
		if _, err := client.ServerInfo(t.Context()); !errors.Is(err, ErrUnavailable) {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		_, err := client.ServerInfo(ctx)
		if !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrDeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		if waited := time.Since(begun); waited > time.Second {
			t.Errorf("returned after %v", waited)
		}
	})
}
