package sandgate

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
)

// requestIDKey is the metadata key of the id that the server logs.
const requestIDKey = "x-request-id"

// headers are the metadata of every call of a client.
type headers struct {
	token    func(context.Context) (string, error) // nil: there is none
	metadata map[string]string
}

// outgoing adds the client's metadata to that of the call, which wins, and returns the
// call's request id.
func (h headers) outgoing(ctx context.Context) (context.Context, string) {
	md, _ := metadata.FromOutgoingContext(ctx)
	for key, value := range h.metadata {
		if len(md.Get(key)) == 0 {
			ctx = metadata.AppendToOutgoingContext(ctx, key, value)
		}
	}
	md, _ = metadata.FromOutgoingContext(ctx)
	if ids := md.Get(requestIDKey); len(ids) > 0 {
		return ctx, ids[0]
	}
	id := newID()
	return metadata.AppendToOutgoingContext(ctx, requestIDKey, id), id
}

// authorized adds the token, and returns it. It calls the source before each attempt,
// since a retry may need a newer token.
func (h headers) authorized(ctx context.Context) (context.Context, string, error) {
	token, err := h.current(ctx)
	if err != nil || token == "" {
		return ctx, "", err
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token), token, nil
}

// current returns the token of this moment; empty: there is none.
func (h headers) current(ctx context.Context) (string, error) {
	if h.token == nil {
		return "", nil
	}
	token, err := h.token(ctx)
	switch e := (*Error)(nil); {
	case errors.As(err, &e):
		return "", err
	case err != nil:
		return "", local(ErrAuthentication, codes.Unauthenticated, err, "the token source failed: %v", err)
	}
	// A token that was read from a file or a Secret ends in a newline.
	token = strings.TrimSpace(token)
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", local(ErrInvalidRequest, codes.InvalidArgument, nil,
			"the token cannot be sent: it must be printable ASCII without spaces (SANDGATE_TOKEN)")
	}
	return token, nil
}

// rejected notes in the error of a call whether the server rejected a token that has
// changed since it was sent.
func (h headers) rejected(ctx context.Context, sent string, err error) error {
	e := (*Error)(nil)
	if !errors.As(err, &e) || e.Code != codes.Unauthenticated {
		return err
	}
	if token, failed := h.current(ctx); failed == nil && token != sent {
		e.tokenChanged = true
	}
	return err
}
