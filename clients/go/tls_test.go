package sandgate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// secured serves with TLS, and wants a certificate of the client where mutual
// is true. It returns its address and the files of its certificate, which is
// its own authority and the client's, and its key.
func secured(t *testing.T, mutual bool) (address, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	rawKey, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	for path, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: raw}, keyFile: {Type: "PRIVATE KEY", Bytes: rawKey}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool := x509.NewCertPool()
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	pool.AddCert(cert)
	settings := &tls.Config{
		MinVersion: tls.VersionTLS12, ClientCAs: pool,
		Certificates: []tls.Certificate{{Certificate: [][]byte{raw}, PrivateKey: key}},
	}
	if mutual {
		settings.ClientAuth = tls.RequireAndVerifyClientCert
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(settings)))
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
	return listener.Addr().String(), certFile, keyFile
}

// A call that reaches the server of this test is UNIMPLEMENTED there.
func TestTLS(t *testing.T) {
	plain, ca, _ := secured(t, false)
	mutual, mutualCA, mutualKey := secured(t, true)
	tests := []struct {
		name string
		opts []Option
		want error
	}{
		{"a CA file turns TLS on", []Option{WithAddress(plain), WithCAFile(ca)}, ErrUnsupported},
		{"with a scheme", []Option{WithAddress("https://" + plain), WithCAFile(ca), WithToken("t")}, ErrUnsupported},
		{"an unknown authority", []Option{WithAddress("https://" + plain)}, ErrUnavailable},
		{"another authority", []Option{WithAddress(plain), WithCAFile(mutualCA)}, ErrUnavailable},
		{"no TLS", []Option{WithAddress(plain)}, ErrUnavailable},
		{"a client certificate", []Option{WithAddress(mutual), WithCAFile(mutualCA), WithCertificate(mutualCA, mutualKey)}, ErrUnsupported},
		{"no client certificate", []Option{WithAddress(mutual), WithCAFile(mutualCA)}, ErrUnavailable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			client, err := NewClient(t.Context(), tt.opts...)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = client.Close() }()
			if _, err := client.ServerInfo(within(t)); !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
		})
	}
}
