package conformance

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server"
	"github.com/sandgate/sandgate/test/testserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cutting is a provider whose connections to agents can be cut.
type cutting struct {
	providers.Provider
	mu    sync.Mutex
	conns map[*counted]bool
}

// counted is a connection that is forgotten once it is closed.
type counted struct {
	net.Conn
	of *cutting
}

func (c *counted) Close() error {
	c.of.mu.Lock()
	delete(c.of.conns, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

func (c *cutting) Create(ctx context.Context, name string, spec providers.Spec) (providers.Info, net.Conn, error) {
	info, conn, err := c.Provider.Create(ctx, name, spec)
	if err != nil || conn == nil {
		return info, conn, err
	}
	return info, c.count(conn), nil
}

func (c *cutting) Dial(ctx context.Context, name string) (net.Conn, error) {
	conn, err := c.Provider.Dial(ctx, name)
	if err != nil {
		return nil, err
	}
	return c.count(conn), nil
}

func (c *cutting) count(conn net.Conn) net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := &counted{conn, c}
	c.conns[one] = true
	return one
}

func (c *cutting) cut(context.Context) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.conns)
	for conn := range c.conns {
		_ = conn.Conn.Close()
	}
	clear(c.conns)
	return n, nil
}

// realServer runs a server over fake sandboxes and returns its address.
func realServer(t *testing.T) (string, *cutting) {
	t.Helper()
	machine, dir := testserver.Machine(t)
	provider := &cutting{Provider: machine.Open(), conns: map[*counted]bool{}}
	address, _ := testserver.Serve(t, dir, server.Config{Provider: provider, Logger: slog.New(slog.DiscardHandler)})
	return address, provider
}

func open(t *testing.T, opts Options) *Suite {
	t.Helper()
	s, err := Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
