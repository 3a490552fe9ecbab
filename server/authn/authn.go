// Package authn authenticates callers: by a bearer token that a file of hashed
// tokens has, that an OpenID Connect issuer signed, or that a Kubernetes API server
// reviews, or by a verified client certificate.
package authn

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Role bounds the calls that a principal may make. A greater role includes the
// smaller ones. The zero value is RoleUser.
type Role int

// Roles.
const (
	// RoleReader may look at its tenant's sandboxes, files and output.
	RoleReader Role = iota - 1
	// RoleUser may do everything with its tenant's sandboxes.
	RoleUser
	// RoleOperator may also list, inspect, signal and delete in other tenants.
	RoleOperator
)

var roleNames = map[Role]string{RoleReader: "reader", RoleUser: "user", RoleOperator: "operator"}

// String returns the role's name in configurations, records and errors.
func (r Role) String() string { return roleNames[r] }

// ParseRole returns the role of this name.
func ParseRole(name string) (Role, error) {
	for r, n := range roleNames {
		if n == name {
			return r, nil
		}
	}
	return 0, fmt.Errorf("%q is not a role; the roles are reader, user and operator", name)
}

// Scope narrows what a principal may do in its tenant. The zero value narrows
// nothing.
type Scope struct {
	// Templates are those that CreateSandbox may name. Nil: all.
	Templates []string
	// IDPrefix begins the ids of all sandboxes that the principal can use.
	IDPrefix string
}

// Principal is an authenticated caller.
type Principal struct {
	// Name is for logs and audit records.
	Name string
	// Tenant owns the sandboxes that the principal works with.
	Tenant string
	// Role bounds the principal's calls.
	Role Role
	// Issuer is what vouches for the principal: "tokens", "certificates",
	// "kubernetes", or the URL of an OpenID Connect issuer.
	Issuer string
	// Scope narrows what the principal may do.
	Scope Scope
}

// Equal reports whether both are the same caller with the same rights.
func (p Principal) Equal(o Principal) bool {
	return p.Name == o.Name && p.Tenant == o.Tenant && p.Role == o.Role && p.Issuer == o.Issuer &&
		p.Scope.IDPrefix == o.Scope.IDPrefix && slices.Equal(p.Scope.Templates, o.Scope.Templates) &&
		(p.Scope.Templates == nil) == (o.Scope.Templates == nil)
}

// Authenticator authenticates callers. It is safe for concurrent use. The
// context carries the call's metadata and peer.
//
// The server calls it after the headers and before the message, on the
// goroutine that reads the caller's connection, and again every few seconds
// while a call runs. It must answer from memory. If it can't, its error is a
// *Pending, and the server waits on the call's own goroutine.
type Authenticator interface {
	// Authenticate returns the principal. The error wraps ErrNoCredentials if the
	// call carries no credentials of this kind, ErrUnknownCredentials if they are
	// not valid, ErrForbidden if they are valid and stand for no tenant, and
	// ErrUnavailable if they can't be checked now. Error texts must not hold
	// credentials.
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
	// ErrRevoked means that the call's credentials were valid and have been revoked.
	// It is an ErrUnknownCredentials.
	ErrRevoked = fmt.Errorf("%w: revoked", ErrUnknownCredentials)
	// ErrForbidden means that the credentials are valid and that no tenant or no
	// role is configured for them.
	ErrForbidden = errors.New("no tenant or role is configured for these credentials")
	// ErrUnavailable means that the credentials can't be checked now. A later call
	// may succeed.
	ErrUnavailable = errors.New("credentials cannot be checked now")
)

// Pending is the error of an authenticator that can't answer from memory.
type Pending struct {
	// Wait returns the answer, which may take seconds. Its error is none of this
	// type.
	Wait func(ctx context.Context) (Principal, error)
}

// Error implements error.
func (*Pending) Error() string { return "the credentials are being checked" }

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
func (a Any) Name() string { return joinNames(a) }

func joinNames[T interface{ Name() string }](all []T) string {
	var s string
	for i, one := range all {
		if i > 0 {
			s += "+"
		}
		s += one.Name()
	}
	return s
}
