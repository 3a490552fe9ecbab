package server

import (
	"testing"
	"time"

	"google.golang.org/grpc"
)

// A tenant that opens connections without end is rejected on the next one, and no other
// tenant is. A closed connection makes room.
func TestConnectionsOfATenantAreBounded(t *testing.T) {
	s := serveTenants(t, func(c *Config) { c.Limits.MaxConnections = 8 }) // two for each tenant
	first, second, third := s.dial(), s.dial(), s.dial()
	for _, conn := range []*grpc.ClientConn{first, second, first} {
		if err := s.call(conn, "one"); err != nil {
			t.Fatal(err)
		}
	}
	wantReason(t, s.call(third, "one"), "TOO_MANY_CONNECTIONS")
	for _, conn := range []*grpc.ClientConn{s.dial(), s.dial()} {
		if err := s.call(conn, "two"); err != nil {
			t.Errorf("another tenant: %v", err)
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	// The server notices the end of a connection by itself.
	for err := s.call(third, "one"); err != nil; err = s.call(third, "one") {
		wantReason(t, err, "TOO_MANY_CONNECTIONS")
		if t.Failed() {
			return
		}
		time.Sleep(time.Millisecond)
	}
}
