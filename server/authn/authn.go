// Package authn authenticates callers: by a bearer token from a file of hashed
// tokens, or by a verified client certificate.
package authn

import (
	"context"
	"errors"
	"fmt"
)

// Principal is an authenticated caller.
type Principal struct {
	// Name is for logs and audit records.
	Name string
	// Tenant owns the sandboxes that the principal works with.
	Tenant string
}

// Authenticator authenticates callers. It is safe for concurrent use. The
// context carries the call's metadata and peer.
//
// The server calls it after the headers and before the message, on the
// goroutine that reads the caller's connection, and again every few seconds
// while a call runs. It should answer from memory.
type Authenticator interface {
	// Authenticate returns the principal. The error wraps ErrNoCredentials if the
	// call carries no credentials of this kind, and ErrUnknownCredentials if they
	// are not valid. Error texts must not hold credentials.
	Authenticate(ctx context.Context) (Principal, error)
	// Name is the kind of credentials, such as "tokens".
	Name() string
}

var (
	// ErrNoCredentials means that the call carries no credentials.
	ErrNoCredentials = errors.New("no credentials")
	// ErrUnknownCredentials means that the call's credentials are not valid.
	ErrUnknownCredentials = errors.New("unknown credentials")
	// ErrExpired means that the call's credentials were valid and have expired.
	// It is an ErrUnknownCredentials.
	ErrExpired = fmt.Errorf("%w: expired", ErrUnknownCredentials)
)

// Any tries authenticators in order. The first one that finds credentials
// decides.
type Any []Authenticator

var _ Authenticator = Any(nil)

// Authenticate implements Authenticator.
func (a Any) Authenticate(ctx context.Context) (Principal, error) {
	for _, one := range a {
		p, err := one.Authenticate(ctx)
		if !errors.Is(err, ErrNoCredentials) {
			return p, err
		}
	}
	return Principal{}, ErrNoCredentials
}

// Name implements Authenticator.
func (a Any) Name() string {
	var s string
	for i, one := range a {
		if i > 0 {
			s += "+"
		}
		s += one.Name()
	}
	return s
}
