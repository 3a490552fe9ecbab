package record

import (
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/sandgate/sandgate/providers"
)

// Tokens is the format of one provider's page tokens: a name with a version, such
// as "local1". A provider rejects the tokens of any other format.
type Tokens string

// Encode returns the token for a position in a list. The empty position, the end
// of the list, has the empty token.
func (f Tokens) Encode(position string) string {
	if position == "" {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString([]byte(string(f) + ":" + position))
}

// Decode returns the position of a token, and "" for the empty token. The error
// wraps ErrTokenInvalid.
func (f Tokens) Decode(token string) (string, error) {
	if token == "" {
		return "", nil
	}
	data, err := base64.RawURLEncoding.DecodeString(token)
	position, known := strings.CutPrefix(string(data), string(f)+":")
	if err != nil || !known || position == "" {
		return "", fmt.Errorf("list: %w", providers.ErrTokenInvalid)
	}
	return position, nil
}
