package sandgate

import (
	"context"
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

// authorized adds the token. It calls the source before each attempt, since a retry
// may need a newer token.
func (h headers) authorized(ctx context.Context) (context.Context, error) {
	if h.token == nil {
		return ctx, nil
	}
	token, err := h.token(ctx)
	if err != nil {
		return nil, local(ErrAuthentication, codes.Unauthenticated, err, "the token source failed: %v", err)
	}
	// A token that was read from a file or a Secret ends in a newline.
	token = strings.TrimSpace(token)
	if token == "" {
		return ctx, nil
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, local(ErrInvalidRequest, codes.InvalidArgument, nil,
			"the token cannot be sent: it must be printable ASCII without spaces (SANDGATE_TOKEN)")
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token), nil
}
