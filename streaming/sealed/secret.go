package sealed

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
)

const (
	secretSize = 32
	// TextSize is the length of a secret's text.
	TextSize = 2 * secretSize
)

// Secret is a shared secret. Only Text prints it.
type Secret struct{ bytes [secretSize]byte }

// NewSecret returns a random secret.
func NewSecret() Secret {
	var s Secret
	rand.Read(s.bytes[:]) // never fails
	return s
}

var errSecret = errors.New("a secret is 64 hexadecimal digits")

// ParseSecret parses the result of Text. The error does not contain the text.
func ParseSecret(text string) (Secret, error) {
	var s Secret
	if len(text) != TextSize {
		return s, errSecret
	}
	if _, err := hex.Decode(s.bytes[:], []byte(text)); err != nil {
		return Secret{}, errSecret
	}
	return s, nil
}

// Text returns the secret in hexadecimal.
func (s Secret) Text() string { return hex.EncodeToString(s.bytes[:]) }

// String keeps a secret out of logs and errors.
func (Secret) String() string { return "[secret]" }

// GoString keeps a secret out of %#v.
func (s Secret) GoString() string { return s.String() }

// role is an end of a connection. Each has its own key, so that a signature of one end is
// never valid for the other.
type role string

const (
	dialer   role = "dialer"
	listener role = "listener"
)

// key derives the key of one end.
func (s Secret) key(r role) (ed25519.PrivateKey, error) {
	seed, err := hkdf.Key(sha256.New, s.bytes[:], nil, "sandgate sealed 1 "+string(r), ed25519.SeedSize)
	if err != nil {
		return nil, fmt.Errorf("derive the key of the %s: %w", r, err)
	}
	return ed25519.NewKeyFromSeed(seed), nil
}
