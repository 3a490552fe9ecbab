package authn

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"
	"sigs.k8s.io/yaml"

	"github.com/sandgate/sandgate/server/reload"
)

// TokenPrefix begins every token, so that secret scanners can find one.
const TokenPrefix = "sgt_"

// Entry is one line of the tokens file. Tokens have 256 random bits, so a plain
// SHA-256 keeps them secret.
type Entry struct {
	Name   string `json:"name"`
	Tenant string `json:"tenant"`
	SHA256 string `json:"sha256"` // of the whole token, 64 hexadecimal digits
	// Expires is when the token expires, in RFC 3339. Nil: never.
	Expires *time.Time `json:"expires,omitempty"`
}

// holder is the principal of a token.
type holder struct {
	Principal
	expires time.Time // zero: never
}

// table maps the hash of a token to its holder.
type table map[[sha256.Size]byte]holder

// NewToken makes a token and the entry for the file.
func NewToken(name, tenant string) (string, Entry, error) {
	var b [32]byte
	rand.Read(b[:]) // never fails
	token := TokenPrefix + base64.RawURLEncoding.EncodeToString(b[:])
	hash := sha256.Sum256([]byte(token))
	e := Entry{Name: name, Tenant: tenant, SHA256: hex.EncodeToString(hash[:])}
	if _, _, err := e.parse(); err != nil {
		return "", Entry{}, err
	}
	return token, e, nil
}

func (e Entry) parse() ([sha256.Size]byte, holder, error) {
	var hash [sha256.Size]byte
	if e.Name == "" || e.Tenant == "" {
		return hash, holder{}, errors.New("name and tenant must be given")
	}
	raw, err := hex.DecodeString(e.SHA256)
	if err != nil || len(raw) != sha256.Size {
		return hash, holder{}, fmt.Errorf("token %q: sha256 must be 64 hexadecimal digits", e.Name)
	}
	copy(hash[:], raw)
	h := holder{Principal: Principal{Name: e.Name, Tenant: e.Tenant}}
	if e.Expires != nil {
		if e.Expires.IsZero() {
			return hash, holder{}, fmt.Errorf("token %q: expires is not a date", e.Name)
		}
		h.expires = *e.Expires
	}
	return hash, h, nil
}

// Tokens authenticates bearer tokens by a file of hashed ones:
//
//	tokens:
//	  - {name: ci, tenant: build, sha256: 5e88…, expires: 2027-01-01T00:00:00Z}
//
// The file is read again after a change. While the new content is invalid, the old
// one stays in force.
type Tokens struct{ file *reload.Files[table] }

var _ Authenticator = (*Tokens)(nil)

// OpenTokens reads the file.
func OpenTokens(path string, log *slog.Logger) (*Tokens, error) {
	file, err := reload.Open(log, func(contents [][]byte) (table, error) { return parseTokens(contents[0]) }, path)
	if err != nil {
		return nil, fmt.Errorf("tokens file: %w", err)
	}
	return &Tokens{file: file}, nil
}

// Name implements Authenticator.
func (t *Tokens) Name() string { return "tokens" }

// Authenticate implements Authenticator.
func (t *Tokens) Authenticate(ctx context.Context) (Principal, error) {
	values := metadata.ValueFromIncomingContext(ctx, "authorization")
	if len(values) == 0 {
		return Principal{}, ErrNoCredentials
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	if len(values) > 1 || !ok || !strings.EqualFold(scheme, "bearer") {
		return Principal{}, fmt.Errorf("%w: the authorization must be one bearer token", ErrUnknownCredentials)
	}
	hash := sha256.Sum256([]byte(strings.TrimSpace(token)))
	// The table is keyed by the hash, so the time of a look-up depends on bits
	// that a caller cannot steer towards a known hash.
	h, ok := t.file.Get()[hash]
	switch {
	case !ok:
		return Principal{}, fmt.Errorf("%w: the token is not known", ErrUnknownCredentials)
	case !h.expires.IsZero() && !time.Now().Before(h.expires):
		return Principal{}, fmt.Errorf("the token of %q: %w", h.Name, ErrExpired)
	default:
		return h.Principal, nil
	}
}

func parseTokens(raw []byte) (table, error) {
	var file struct {
		Tokens []Entry `json:"tokens"`
	}
	if err := yaml.UnmarshalStrict(raw, &file); err != nil {
		return nil, err
	}
	known := make(table, len(file.Tokens))
	for _, e := range file.Tokens {
		hash, h, err := e.parse()
		if err != nil {
			return nil, err
		}
		if other, ok := known[hash]; ok && other != h {
			return nil, fmt.Errorf("tokens %q and %q have the same hash", other.Name, h.Name)
		}
		known[hash] = h
	}
	return known, nil
}
