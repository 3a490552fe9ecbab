package sandgate

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/sandgate/sandgate/clients/go/fake"
)

// Every call that is in flight or waits for its retry ends when its client is closed.
func TestCloseEndsCalls(t *testing.T) {
	restarting := func(string) error { return fake.Error(codes.Unavailable, "SERVER_SHUTTING_DOWN", "restarting") }
	for _, tt := range []struct {
		name   string
		server *fake.Server
		opts   []Option
		call   func(*Client) error
	}{
		{
			name: "a retry of a unary call", server: &fake.Server{Fail: restarting},
			call: func(c *Client) error { _, err := c.ServerInfo(context.Background()); return err },
		},
		{
			name: "a retry of a stream", server: &fake.Server{Fail: restarting},
			call: func(c *Client) error { _, err := c.Sandbox("a").Download(context.Background(), "/x"); return err },
		},
		{
			name: "a unary call", server: &fake.Server{Late: func(string) { time.Sleep(time.Minute) }},
			call: func(c *Client) error { _, err := c.Get(context.Background(), "a"); return err },
		},
		{
			name: "a command", server: &fake.Server{Play: func(r *fake.Run) { <-r.Killed }},
			call: func(c *Client) error {
				s, _, err := c.Create(context.Background(), CreateRequest{ID: "a"})
				if err == nil {
					_, err = s.Execute(context.Background(), ExecuteRequest{Shell: "sleep 1000"})
				}
				return err
			},
		},
		{
			name: "a token source", server: &fake.Server{},
			opts: []Option{WithTokenSource(func(ctx context.Context) (string, error) { <-ctx.Done(); return "", ctx.Err() })},
			call: func(c *Client) error { _, err := c.ServerInfo(context.Background()); return err },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := connect(t, tt.server, tt.opts...)
				client.reached.Store(true)
				failed := make(chan error, 1)
				go func() { failed <- tt.call(client) }()
				time.Sleep(3 * time.Second)
				begun := time.Now()
				if err := client.Close(); err != nil {
					t.Fatal(err)
				}
				checkClosed(t, <-failed)
				if waited := time.Since(begun); waited > 0 {
					t.Errorf("ended %v after Close", waited)
				}
				if err := client.Close(); err != nil {
					t.Errorf("a further Close: %v", err)
				}
				if tt.opts == nil {
					_, err := client.ServerInfo(t.Context())
					checkClosed(t, err)
				}
				time.Sleep(time.Hour) // The handlers of the fake end.
			})
		})
	}
}

// The error is that of a caller that cancelled, and of no server that is away.
func checkClosed(t *testing.T, err error) {
	t.Helper()
	e := (*Error)(nil)
	if !errors.As(err, &e) || !errors.Is(err, ErrCallCancelled) || errors.Is(err, ErrUnavailable) || e.Message != "the client is closed" {
		t.Errorf("error %v, want that of a closed client", err)
	}
}

func TestCloseEndsConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &fake.Server{}
		client := connect(t, server)
		_ = client.Close()
		_, err := client.Sandbox("a").Connect(t.Context(), 80)
		checkClosed(t, err)
	})
}
