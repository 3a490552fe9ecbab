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
	"regexp"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/sandgate/sandgate/server/reload"
)

// TokenPrefix begins every token, so that secret scanners can find one.
const TokenPrefix = "sgt_"

// maxIDPrefix leaves room in an id, which has 128 bytes at most, for one that the
// server chooses.
const maxIDPrefix = 100

var idPrefix = regexp.MustCompile(`^([a-zA-Z0-9][a-zA-Z0-9._-]*)?$`)

// Entry is one line of the tokens file. Tokens have 256 random bits, so a plain
// SHA-256 keeps them secret.
type Entry struct {
	Name   string `json:"name"`
	Tenant string `json:"tenant"`
	SHA256 string `json:"sha256"` // of the whole token, 64 hexadecimal digits
	// Role is "reader", "user" or "operator". Empty: user.
	Role string `json:"role,omitempty"`
	// Templates are those that CreateSandbox may name. Nil: all.
	Templates []string `json:"templates,omitempty"`
	// IDPrefix begins the ids of all sandboxes that the token can use.
	IDPrefix string `json:"id_prefix,omitempty"`
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

// NewToken makes a token and the entry for the file, which has the fields of e and
// the token's hash.
func NewToken(e Entry) (string, Entry, error) {
	var b [32]byte
	rand.Read(b[:]) // never fails
	token := TokenPrefix + base64.RawURLEncoding.EncodeToString(b[:])
	hash := sha256.Sum256([]byte(token))
	e.SHA256 = hex.EncodeToString(hash[:])
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
	h := holder{Principal: Principal{
		Name: e.Name, Tenant: e.Tenant, Issuer: tokensName, Scope: Scope{Templates: e.Templates, IDPrefix: e.IDPrefix},
	}}
	if e.Role != "" {
		if h.Role, err = ParseRole(e.Role); err != nil {
			return hash, holder{}, fmt.Errorf("token %q: %w", e.Name, err)
		}
	}
	if len(e.IDPrefix) > maxIDPrefix || !idPrefix.MatchString(e.IDPrefix) {
		return hash, holder{}, fmt.Errorf("token %q: id_prefix must be at most %d characters of a-z, A-Z, 0-9, '.', '_', '-', beginning with a letter or digit", e.Name, maxIDPrefix)
	}
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
//	  - {name: bot, tenant: build, sha256: 8d96…, templates: [small], id_prefix: bot-}
//
// The file is read again after a change. While the new content is invalid, the old
// one stays in force.
type Tokens struct{ file *reload.Files[table] }

var (
	_ Authenticator      = (*Tokens)(nil)
	_ TokenAuthenticator = (*Tokens)(nil)
)

// OpenTokens reads the file.
func OpenTokens(path string, log *slog.Logger) (*Tokens, error) {
	file, err := reload.Open(log, func(contents [][]byte) (table, error) { return parseTokens(contents[0]) }, path)
	if err != nil {
		return nil, fmt.Errorf("tokens file: %w", err)
	}
	return &Tokens{file: file}, nil
}

// tokensName is the name of Tokens, and the issuer of their principals.
const tokensName = "tokens"

// Name implements Authenticator and TokenAuthenticator.
func (t *Tokens) Name() string { return tokensName }

// Authenticate implements Authenticator.
func (t *Tokens) Authenticate(ctx context.Context) (Principal, error) {
	return Bearer{t}.Authenticate(ctx)
}

// AuthenticateToken implements TokenAuthenticator.
func (t *Tokens) AuthenticateToken(token string) (Principal, error) {
	hash := sha256.Sum256([]byte(token))
	// The table is keyed by the hash, so the time of a look-up depends on bits
	// that a caller cannot steer towards a known hash.
	h, ok := t.file.Get()[hash]
	switch {
	case !ok:
		return Principal{}, ErrNoCredentials
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
		if other, ok := known[hash]; ok && (!other.Equal(h.Principal) || !other.expires.Equal(h.expires)) {
			return nil, fmt.Errorf("tokens %q and %q have the same hash", other.Name, h.Name)
		}
		known[hash] = h
	}
	return known, nil
}
