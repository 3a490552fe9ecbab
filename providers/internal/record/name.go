package record

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
)

// alphabet has only what the name of a Kubernetes object and of a directory may
// have anywhere.
var alphabet = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Digest returns 20 characters that stand for the texts: 100 bits of a hash.
func Digest(texts ...string) string {
	h := sha256.New()
	for _, t := range texts {
		fmt.Fprintf(h, "%d:%s", len(t), t)
	}
	return alphabet.EncodeToString(h.Sum(nil))[:20]
}

// Random returns a name of 16 characters: 80 random bits.
func Random() string {
	var b [10]byte
	rand.Read(b[:]) // never fails
	return alphabet.EncodeToString(b[:])
}
