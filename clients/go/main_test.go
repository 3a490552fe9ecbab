package sandgate

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandgate/sandgate/clients/go/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connect starts a fake server and a client of it.
func connect(t *testing.T, server *fake.Server, opts ...Option) *Client {
	t.Helper()
	fake.Start(t, server)
	client, err := NewClient(t.Context(), append([]Option{WithAddress("127.0.0.1:1"), WithDialOptions(server.DialOptions()...)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// create makes a sandbox with an id.
func create(t *testing.T, client *Client, id string) *Sandbox {
	t.Helper()
	sandbox, _, err := client.Create(within(t), CreateRequest{ID: id})
	if err != nil {
		t.Fatal(err)
	}
	return sandbox
}

// within returns a context that fails the test rather than let it hang.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}
