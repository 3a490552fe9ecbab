package record

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"strings"
)

// alphabet has only what the name of a Kubernetes object and of a directory may
// have anywhere.
var alphabet = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Digest returns 20 characters that stand for the texts: 100 bits of a hash.
// Several texts must not contain NUL. Stored labels depend on the result.
func Digest(texts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(texts, "\x00")))
	return alphabet.EncodeToString(sum[:])[:20]
}

// Random returns a name of 16 characters: 80 random bits.
func Random() string {
	var b [10]byte
	rand.Read(b[:]) // never fails
	return alphabet.EncodeToString(b[:])
}
