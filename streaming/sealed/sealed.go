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

// ErrStranger says that the other end does not know the secret, or does not
// speak as one that does.
var ErrStranger = errors.New("the other end does not know the secret")

// protocol is what is spoken inside. A peer that does not say so is a stranger.
const protocol = "h2"

// Client seals a connection that was dialled, and returns when the other end
// has proved that it knows the secret. The context bounds only that. On an
// error the connection is closed; the error wraps ErrStranger when whoever
// answered is not the one that was meant.
func Client(ctx context.Context, conn net.Conn, s Secret) (net.Conn, error) {
	config, err := s.config(dialer, listener)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	c := tls.Client(conn, config)
	if err := c.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, explain(ctx, err)
	}
	return c, nil
}

// config is that of one end, which takes nobody but the other.
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
		// Chains, names and times say nothing here. What counts is the key, which
		// is looked at in every handshake, and there are no others: none is
		// resumed.
		InsecureSkipVerify:     true,
		ClientAuth:             tls.RequireAnyClientCert,
		VerifyConnection:       onlyKey(theirs.Public().(ed25519.PublicKey)),
		SessionTicketsDisabled: true,
	}, nil
}

// onlyKey takes a peer that has shown one key. TLS itself makes sure that the
// peer has its private half.
func onlyKey(want ed25519.PublicKey) func(tls.ConnectionState) error {
	return func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) != 1 || state.NegotiatedProtocol != protocol {
			return ErrStranger
		}
		got, ok := state.PeerCertificates[0].PublicKey.(ed25519.PublicKey)
		if !ok || subtle.ConstantTimeCompare(got, want) != 1 {
			return ErrStranger
		}
		return nil
	}
}

// certify wraps a key in the certificate that TLS carries it in.
func certify(key ed25519.PrivateKey) (tls.Certificate, error) {
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<32, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// explain tells a network that failed from a peer that is somebody else.
func explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var op *net.OpError
	var network net.Error
	switch {
	case errors.Is(err, ErrStranger):
		return err
	case errors.As(err, &op) && (op.Op == "remote error" || op.Op == "local error"):
		// An alert of TLS.
		return fmt.Errorf("%w: %w", ErrStranger, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &network):
		return err
	default:
		return fmt.Errorf("%w: %w", ErrStranger, err)
	}
}
