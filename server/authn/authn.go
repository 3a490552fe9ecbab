// Package authn finds out who a caller is: by a bearer token from a file of
// hashed tokens, or by a verified client certificate.
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

// Authenticator finds out who a caller is. It is safe for concurrent use. The
// context carries the call's metadata and peer.
//
// It is called before anything but the headers is read, on the goroutine that
// reads the caller's connection, and again every few seconds while a call runs:
// it should answer from memory.
type Authenticator interface {
	// Authenticate returns the principal. The error wraps ErrNoCredentials
	// when the call carries none of the kind that it looks at, and
	// ErrUnknownCredentials when it carries some that do not count. Error texts
	// must not hold credentials.
	Authenticate(ctx context.Context) (Principal, error)
	// Name says in a word or two what it looks at, such as "tokens".
	Name() string
}

var (
	// ErrNoCredentials means that the call carries no credentials.
	ErrNoCredentials = errors.New("no credentials")
	// ErrUnknownCredentials means that the call's credentials are not known here.
	ErrUnknownCredentials = errors.New("unknown credentials")
	// ErrExpired means that the call's credentials are known, and have expired.
	// It is an ErrUnknownCredentials.
	ErrExpired = fmt.Errorf("%w: expired", ErrUnknownCredentials)
)

// Any asks authenticators in turn; the first for which the call carries
// credentials decides.
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
