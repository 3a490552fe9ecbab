package sandgate

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// served serves until the test ends, and returns its address. A call that
// reaches it is UNIMPLEMENTED there.
func served(t *testing.T, creds credentials.TransportCredentials) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(creds))
	sandboxv1.RegisterSandboxServiceServer(server, sandboxv1.UnimplementedSandboxServiceServer{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return listener.Addr().String()
}

// secured serves with a certificate of an authority, as change makes it.
func secured(t *testing.T, by authority, change func(*x509.Certificate)) string {
	t.Helper()
	pair, _, _ := by.issue(t, change)
	return served(t, credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}))
}

func TestTLS(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	good := secured(t, ca, nil)
	expired := secured(t, ca, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	elsewhere := secured(t, ca, func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{"elsewhere.example.com"} })
	plain := served(t, insecure.NewCredentials())

	pool := x509.NewCertPool()
	pool.AddCert(ca.pair.Leaf)
	pair, _, _ := ca.issue(t, nil)
	mutual := served(t, credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair},
		ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}))
	_, cert, key := ca.issue(t, nil)
	_, strange, strangeKey := other.issue(t, nil)

	tests := []struct {
		name string
		opts []Option
		want error
		hint hint
	}{
		{"a CA file turns TLS on", []Option{WithAddress(good), WithCAFile(ca.file)}, ErrUnsupported, hintNone},
		{"with a scheme", []Option{WithAddress("https://" + good), WithCAFile(ca.file), WithToken("t")}, ErrUnsupported, hintNone},
		{"a client certificate", []Option{WithAddress(mutual), WithCAFile(ca.file), WithCertificate(cert, key)}, ErrUnsupported, hintNone},
		{"a server's name", []Option{WithAddress(elsewhere), WithCAFile(ca.file), WithServerName("elsewhere.example.com")}, ErrUnsupported, hintNone},
		{"S5-31 an unknown authority", []Option{WithAddress("https://" + good)}, ErrUnavailable, hintUntrusted},
		{"S5-31 another authority", []Option{WithAddress(good), WithCAFile(other.file)}, ErrUnavailable, hintUntrusted},
		{"S5-31 an expired certificate", []Option{WithAddress(expired), WithCAFile(ca.file)}, ErrUnavailable, hintExpired},
		{"S5-31 a certificate for another name", []Option{WithAddress(elsewhere), WithCAFile(ca.file)}, ErrUnavailable, hintAnotherName},
		{"S5-31 the server speaks TLS and the client does not", []Option{WithAddress(good)}, ErrUnavailable, hintTLS},
		{"S5-31 the client speaks TLS and the server does not", []Option{WithAddress(plain), WithCAFile(ca.file)}, ErrUnavailable, hintNoTLS},
		{"S5-31 no client certificate", []Option{WithAddress(mutual), WithCAFile(ca.file)}, ErrUnavailable, hintCertificateWanted},
		{"S5-31 a stranger's certificate", []Option{WithAddress(mutual), WithCAFile(ca.file), WithCertificate(strange, strangeKey)}, ErrUnavailable, hintCertificateWanted},
		{"S5-31 nobody there", []Option{WithAddress("127.0.0.1:1")}, ErrUnavailable, hintNotRunning},
		{"S5-31 no socket there", []Option{WithAddress("unix:///nonexistent/s.sock")}, ErrUnavailable, hintNotRunning},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			client, err := NewClient(t.Context(), tt.opts...)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = client.Close() }()
			_, unary := client.ServerInfo(within(t))
			_, stream := client.Sandbox("x").Execute(within(t), ExecuteRequest{Shell: "true"})
			for _, err := range []error{unary, stream} {
				if !errors.Is(err, tt.want) || !strings.HasSuffix(err.Error(), hints[tt.hint]) {
					t.Errorf("error %v, want %v; %s", err, tt.want, hints[tt.hint])
				}
			}
		})
	}
}

// The three clients give the same hints: clients/hints.json.
func TestHintsAreThoseOfTheTable(t *testing.T) {
	got := map[string]string{}
	for key, words := range hints {
		got[string(key)] = words
	}
	if diff := cmp.Diff(table(t, "../hints.json"), got); diff != "" {
		t.Errorf("hints differ from clients/hints.json (-file +go):\n%s", diff)
	}
}
