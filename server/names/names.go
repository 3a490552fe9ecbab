// Package names derives the names of sandboxes at the substrate, and makes ids.
package names

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"strings"
)

const (
	maxSubstrateName = 63
	nameHashLength   = 20 // base32 digits: 100 bits
	maxSlug          = maxSubstrateName - len("sg-") - len("-") - nameHashLength
)

var nameEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Substrate returns the substrate's name for a tenant's sandbox:
// "sg-SLUG-HASH", a valid DNS label of at most 63 characters. The slug is for
// people; the hash over tenant and id makes it collision-free.
func Substrate(tenant, id string) string {
	h := sha256.New()
	h.Write([]byte(tenant))
	h.Write([]byte{0})
	h.Write([]byte(id))
	hash := nameEncoding.EncodeToString(h.Sum(nil))[:nameHashLength]
	if s := slug(id); s != "" {
		return "sg-" + s + "-" + hash
	}
	return "sg-" + hash
}

func slug(id string) string {
	var b strings.Builder
	for i := 0; i < len(id) && b.Len() < maxSlug; i++ {
		c := id[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
			b.WriteByte(c)
		case b.Len() > 0 && b.String()[b.Len()-1] != '-':
			b.WriteByte('-')
		}
	}
	return strings.Trim(b.String(), "-")
}

// NewID returns an id with 80 random bits.
func NewID(prefix string) string {
	var b [10]byte
	rand.Read(b[:]) // never fails
	return prefix + nameEncoding.EncodeToString(b[:])
}
