package fake

import (
	"net"
	"sync"
)

// tracker knows the connections that a listener accepted, as a container knows
// its own: they end with it.
type tracker struct {
	net.Listener

	mu    sync.Mutex
	ended bool
	conns []net.Conn
}

func (t *tracker) Accept() (net.Conn, error) {
	conn, err := t.Listener.Accept()
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		_ = conn.Close()
	}
	t.conns = append(t.conns, conn)
	return conn, nil
}

func (t *tracker) hangUp() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	for _, conn := range t.conns {
		_ = conn.Close()
	}
}
