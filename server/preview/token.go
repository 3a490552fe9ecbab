package preview

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// minSecret is the least length of the secret, in bytes.
const minSecret = 16

// Claims are what a token permits: one port or one file of one incarnation of a
// sandbox, until it expires, in the name of a principal.
type Claims struct {
	Tenant      string    `json:"t"`
	SandboxID   string    `json:"s"`
	Incarnation string    `json:"i"`
	Expires     time.Time `json:"e"`
	Principal   string    `json:"n,omitempty"`
	Issuer      string    `json:"v,omitempty"`
	// Port is the TCP port, or 0 for a file.
	Port int32 `json:"p,omitempty"`
	// Path is the file's. Put allows writing it, and not reading.
	Path string `json:"f,omitempty"`
	Put  bool   `json:"w,omitempty"`
	// Access narrows the sandbox's policy for the file, or is nil.
	Access *sandboxv1.AccessPolicy `json:"a,omitempty"`
}

var (
	errToken   = errors.New("not a token of this server")
	errExpired = errors.New("the token has expired")
)

// keys seal tokens and derive host names.
type keys struct {
	seal  cipher.AEAD
	label []byte
}

func newKeys(secret []byte) (keys, error) {
	if len(secret) < minSecret {
		return keys{}, fmt.Errorf("the secret has %d bytes; it needs at least %d", len(secret), minSecret)
	}
	key, err := hkdf.Key(sha256.New, secret, nil, "sandgate preview token 1", 32)
	if err != nil {
		return keys{}, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return keys{}, err
	}
	seal, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return keys{}, err
	}
	label, err := hkdf.Key(sha256.New, secret, nil, "sandgate preview label 1", 32)
	return keys{seal, label}, err
}

// token seals c: its holder can neither read nor change it.
func (k keys) token(c Claims) (string, error) {
	raw, err := json.Marshal(c)
	return base64.RawURLEncoding.EncodeToString(k.seal.Seal(nil, nil, raw, nil)), err
}

// open returns the claims of a token, also with errExpired.
func (k keys) open(token string, now time.Time) (Claims, error) {
	var c Claims
	sealed, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil {
		return c, errToken
	}
	raw, err := k.seal.Open(nil, nil, sealed, nil)
	if err != nil {
		return c, errToken
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return c, errToken
	}
	if !now.Before(c.Expires) {
		return c, errExpired
	}
	return c, nil
}

// labelBytes make two sandboxes with the same host name impossible in practice.
const labelBytes = 16

// labelText is case-insensitive, as host names are.
var labelText = base32.HexEncoding.WithPadding(base32.NoPadding)

// host returns the first label of the host name: that of one port of one incarnation
// of a sandbox, or that of its files. Its opaque part reveals nothing and cannot be
// guessed.
func (k keys) host(c Claims) (string, error) {
	prefix := "file"
	if c.Port != 0 {
		prefix = fmt.Sprint(c.Port)
	}
	bound, err := json.Marshal([]string{c.Tenant, c.SandboxID, c.Incarnation, prefix})
	if err != nil {
		return "", err
	}
	mac := hmac.New(sha256.New, k.label)
	mac.Write(bound)
	return prefix + "-" + strings.ToLower(labelText.EncodeToString(mac.Sum(nil)[:labelBytes])), nil
}
