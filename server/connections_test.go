package server

import (
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/authn"
)

// A tenant that opens connections without end is rejected on the next one, and no other
// tenant is. A closed connection makes room.
func TestConnectionsOfATenantAreBounded(t *testing.T) {
	path, tokens := tokensOf(t, "one", "two")
	addr, _ := tcpHarness(t, func(c *Config) {
		c.Limits.MaxConnections = 8 // two for each tenant
		var err error
		if c.Authenticator, err = authn.OpenTokens(path, c.Logger); err != nil {
			t.Fatal(err)
		}
	})
	dial := func() *grpc.ClientConn {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	call := func(conn *grpc.ClientConn, tenant string) error {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+tokens[tenant])
		_, err := sandboxv1.NewSandboxServiceClient(conn).GetServerInfo(ctx, &sandboxv1.GetServerInfoRequest{})
		return err
	}
	first, second, third := dial(), dial(), dial()
	for _, conn := range []*grpc.ClientConn{first, second, first} {
		if err := call(conn, "one"); err != nil {
			t.Fatal(err)
		}
	}
	wantReason(t, call(third, "one"), "TOO_MANY_CONNECTIONS")
	for _, conn := range []*grpc.ClientConn{dial(), dial()} {
		if err := call(conn, "two"); err != nil {
			t.Errorf("another tenant: %v", err)
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	// The server notices the end of a connection by itself.
	for err := call(third, "one"); err != nil; err = call(third, "one") {
		wantReason(t, err, "TOO_MANY_CONNECTIONS")
		if t.Failed() {
			return
		}
		time.Sleep(time.Millisecond)
	}
}
