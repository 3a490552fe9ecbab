package authn

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/metadata"
)

// TokenAuthenticator authenticates one kind of bearer tokens. It is safe for
// concurrent use.
type TokenAuthenticator interface {
	// AuthenticateToken returns the token's principal. Its errors are those of
	// Authenticator.Authenticate; ErrNoCredentials means that the token is of
	// another kind.
	AuthenticateToken(token string) (Principal, error)
	// Name is the kind of tokens.
	Name() string
}

// Bearer authenticates by the bearer token in a call's metadata. The first kind
// of token that recognizes it decides. A call with a token that no kind
// recognizes is rejected, also if it has other credentials.
type Bearer []TokenAuthenticator

var _ Authenticator = Bearer(nil)

// Name implements Authenticator.
func (b Bearer) Name() string { return joinNames(b) }

// Authenticate implements Authenticator.
func (b Bearer) Authenticate(ctx context.Context) (Principal, error) {
	token, err := bearerToken(ctx)
	if err != nil {
		return Principal{}, err
	}
	for _, kind := range b {
		p, err := kind.AuthenticateToken(token)
		if !errors.Is(err, ErrNoCredentials) {
			return p, err
		}
	}
	return Principal{}, fmt.Errorf("%w: the token is not known", ErrUnknownCredentials)
}

// bearerToken returns the only bearer token in the metadata.
func bearerToken(ctx context.Context) (string, error) {
	values := metadata.ValueFromIncomingContext(ctx, "authorization")
	if len(values) == 0 {
		return "", ErrNoCredentials
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	if len(values) > 1 || !ok || !strings.EqualFold(scheme, "bearer") {
		return "", fmt.Errorf("%w: the authorization must be one bearer token", ErrUnknownCredentials)
	}
	return strings.TrimSpace(token), nil
}
