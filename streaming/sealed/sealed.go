package sealed

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"time"
)

// ErrUnauthenticated is returned if the peer does not prove that it knows the secret.
var ErrUnauthenticated = errors.New("the other end does not know the secret")

// protocol is the protocol inside of TLS. A peer must negotiate it.
const protocol = "h2"

// Client runs the handshake on a dialled connection. The context bounds only the
// handshake. On an error the connection is closed. The error wraps ErrUnauthenticated
// if the peer is the wrong one.
func Client(ctx context.Context, conn net.Conn, s Secret) (net.Conn, error) {
	config, err := s.config(dialer, listener)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	c := tls.Client(conn, config)
	if err := c.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, handshakeError(ctx, err)
	}
	return c, nil
}

// config returns the configuration of one end, which accepts only the other.
func (s Secret) config(own, other role) (*tls.Config, error) {
	key, err := s.key(own)
	if err != nil {
		return nil, err
	}
	certificate, err := certify(key)
	if err != nil {
		return nil, err
	}
	theirs, err := s.key(other)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{certificate},
		NextProtos:   []string{protocol},
		// Chains, names and times are not checked. VerifyConnection checks the key in
		// every handshake; no session is resumed without one.
		InsecureSkipVerify:     true,
		ClientAuth:             tls.RequireAnyClientCert,
		VerifyConnection:       onlyKey(theirs.Public().(ed25519.PublicKey)),
		SessionTicketsDisabled: true,
	}, nil
}

// onlyKey accepts a peer with the given key. TLS verifies that the peer has its private
// half.
func onlyKey(want ed25519.PublicKey) func(tls.ConnectionState) error {
	return func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) != 1 || state.NegotiatedProtocol != protocol {
			return ErrUnauthenticated
		}
		got, ok := state.PeerCertificates[0].PublicKey.(ed25519.PublicKey)
		if !ok || subtle.ConstantTimeCompare(got, want) != 1 {
			return ErrUnauthenticated
		}
		return nil
	}
}

// certify returns a certificate that carries the key.
func certify(key ed25519.PrivateKey) (tls.Certificate, error) {
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<32, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// handshakeError wraps ErrUnauthenticated unless the network failed.
func handshakeError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var op *net.OpError
	var network net.Error
	switch {
	case errors.Is(err, ErrUnauthenticated):
		return err
	case errors.As(err, &op) && (op.Op == "remote error" || op.Op == "local error"):
		// A TLS alert.
		return fmt.Errorf("%w: %w", ErrUnauthenticated, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &network):
		return err
	default:
		return fmt.Errorf("%w: %w", ErrUnauthenticated, err)
	}
}
